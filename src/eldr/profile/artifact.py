"""The fitted profile: what a router needs to make signatures and to compare them with its workers."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Self

import msgspec
import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from eldr.errors import ConfigError, ProfileError
from eldr.files import replacing
from eldr.profile.dataset import is_calibration
from eldr.signature import TRANSFORMATIONS, SignatureTransform
from eldr.types import Matrix

FORMAT = 1
_KEY = "eldr"
_ARRAYS = {"idf": "float32", "kept_layers": "int64", "centroids": "float32", "cluster_sizes": "int64"}
_REMEDY = "fit it again with `eldr fit`"


class ProfileInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a profile was made from, and how.

    fingerprint: of the model's routing shape. tau: band width to route with. rho: quality of the signatures,
    None where it could not be measured. layer_order, layer_rho: how the kept layers were selected, empty
    where they were given. created_at: UTC, ISO 8601.
    """

    format: int = FORMAT
    model: str
    layers: int
    experts: int
    top_k: int
    fingerprint: str
    transformation: str
    tau: float
    rho: float | None
    layer_order: tuple[int, ...] = ()
    layer_rho: tuple[float, ...] = ()
    calibration_requests: int
    seed: int
    created_at: str
    eldr_version: str


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """The fitted arrays and what they were made from.

    idf: float32 [L, E], the weights of the transformation, all ones where it has none.
    kept_layers: int64 [M]. centroids: float32 [K, M x E], unit rows, one a decode worker.
    cluster_sizes: int64 [K], the calibration requests of each.
    """

    idf: Matrix
    kept_layers: npt.NDArray[np.int64]
    centroids: Matrix
    cluster_sizes: npt.NDArray[np.int64]
    info: ProfileInfo

    def __post_init__(self) -> None:
        """Raise ProfileError, naming the part, for anything that is not as described above."""
        _check_info(self.info)
        _check_arrays(self)

    @property
    def workers(self) -> int:
        """K, the decode workers that it was fitted for."""
        return len(self.centroids)

    @property
    def counts_shape(self) -> tuple[int, int, int]:
        """Layers, experts and top-k of the counts that it is for."""
        return self.info.layers, self.info.experts, self.info.top_k

    def signature_transform(self) -> SignatureTransform:
        """Return the transform that gives signatures comparable with the centroids."""
        return SignatureTransform.fitted(self.info.transformation, self.idf, self.kept_layers)

    def check_fits(
        self,
        layers: int,
        experts: int,
        top_k: int | None = None,
        model: str | None = None,
        workers: int | None = None,
    ) -> None:
        """Raise ProfileError, naming every difference, unless it is for this model and pool.

        What is None is not compared.
        """
        running = {"model": model, "layers": layers, "experts": experts, "top_k": top_k, "workers": workers}
        fitted = {name: getattr(self.info, name, self.workers) for name in running}
        differences = [
            f"{name} {fitted[name]} in the profile and {value} running"
            for name, value in running.items()
            if value is not None and value != fitted[name]
        ]
        if differences:
            remedy = (
                f"`eldr fit --workers {workers or self.workers}` on a calibration set of the running model"
            )
            raise ProfileError(f"the profile does not fit: {', '.join(differences)}; run {remedy}")

    def save(self, path: Path) -> None:
        """Write the profile as one .safetensors file, atomically."""
        arrays = {name: np.ascontiguousarray(getattr(self, name)) for name in _ARRAYS}
        data = save(arrays, metadata={_KEY: msgspec.json.encode(self.info).decode()})
        with replacing(path) as file:
            file.write(data)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a profile; raises ProfileError for one that is absent, damaged or of another version."""
        try:
            arrays, text = _read(path)
            return cls(**arrays, info=_parse_info(text))
        except ProfileError as error:
            raise ProfileError(f"{path}: {error}") from None


def routing_fingerprint(layers: int, experts: int, top_k: int) -> str:
    """Return a short hash of what must be equal for expert counts to be comparable."""
    return hashlib.sha256(f"layers={layers} experts={experts} top_k={top_k}".encode()).hexdigest()[:16]


def _read(path: Path) -> tuple[dict[str, Any], str]:
    try:
        if not path.is_file():
            raise ProfileError("there is no such file; make it with `eldr fit`")
        if is_calibration(path):
            raise ProfileError("this is a calibration set; make a profile of it with `eldr fit`")
        with safe_open(path, framework="numpy") as file:
            names, metadata = set(file.keys()), file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in _ARRAYS if name in names}
    except (SafetensorError, OSError, ValueError, TypeError, AttributeError) as error:
        raise ProfileError(f"not a profile, or damaged ({error}); {_REMEDY}") from error
    if _KEY not in metadata:
        raise ProfileError(f"not a profile of eldr: no {_KEY!r} in its metadata; {_REMEDY}")
    missing = sorted(_ARRAYS.keys() - arrays.keys())
    if missing:
        _fail(missing[0], "missing")
    return arrays, metadata[_KEY]


def _parse_info(text: str) -> ProfileInfo:
    """Read the version first, since the fields of another one are not known here."""
    try:
        version = msgspec.json.decode(text, type=dict[str, Any]).get("format")
        if version != FORMAT:
            _fail("format", f"version {version}, expected {FORMAT}")
        return msgspec.json.decode(text, type=ProfileInfo)
    except msgspec.MsgspecError as error:
        raise ProfileError(f"its metadata is damaged ({error}); {_REMEDY}") from error


def _check_info(info: ProfileInfo) -> None:
    for name in ("layers", "experts", "top_k", "calibration_requests"):
        if getattr(info, name) < 1:
            _fail(name, f"{getattr(info, name)}, expected at least 1")
    if info.fingerprint != routing_fingerprint(info.layers, info.experts, info.top_k):
        _fail("fingerprint", f"{info.fingerprint!r}, which is of another model than the rest says")
    if info.transformation not in TRANSFORMATIONS.names():
        _fail("transformation", f"{info.transformation!r}, which this version does not know")
    if not 0 <= info.tau <= 2:
        _fail("tau", f"{info.tau}, expected 0 to 2")
    if len(info.layer_order) != len(info.layer_rho):
        _fail("layer_rho", f"of {len(info.layer_rho)} layers, expected {len(info.layer_order)}")


def _check_arrays(profile: Profile) -> None:
    layers, experts = profile.info.layers, profile.info.experts
    kept, clusters = profile.kept_layers.size, len(np.atleast_1d(profile.cluster_sizes))
    shapes = {
        "idf": (layers, experts),
        "kept_layers": (kept,),
        "centroids": (clusters, kept * experts),
        "cluster_sizes": (clusters,),
    }
    for name, dtype in _ARRAYS.items():
        array = getattr(profile, name)
        if array.dtype != dtype or array.shape != shapes[name] or not array.size:
            _fail(name, f"{array.dtype} {list(array.shape)}, expected {dtype} {list(shapes[name])}")
        if not np.isfinite(array).all():
            _fail(name, "not finite")
    lengths = np.linalg.norm(profile.centroids.astype(np.float64), axis=1)
    if not np.allclose(lengths, 1, atol=1e-3):
        _fail("centroids", f"of length {lengths[np.abs(lengths - 1).argmax()]:.3g} in a row, expected 1")
    if profile.cluster_sizes.min() < 0:
        _fail("cluster_sizes", "negative")
    try:
        profile.signature_transform()
    except ConfigError as error:
        _fail("kept_layers", str(error))


def _fail(part: str, problem: str) -> NoReturn:
    raise ProfileError(f"its {part!r} is {problem}; {_REMEDY}")

"""What calibration learns: the calibration set, balanced clusters, and the profile that a router loads."""

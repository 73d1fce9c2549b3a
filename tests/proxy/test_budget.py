"""The budget of retries as a bucket on a clock that the test moves."""

from eldr.clock import VirtualClock
from eldr.proxy.budget import RetryBudget
from eldr.settings_fleet import RetryConfig


def spent(budget: RetryBudget, tries: int) -> int:
    return sum(budget.spend() for _ in range(tries))


def test_an_outage_runs_at_most_the_burst_and_a_share_of_requests_again() -> None:
    budget = RetryBudget(RetryConfig(share=0.2, least_per_s=0, burst=10), VirtualClock())
    granted = 0
    for _ in range(1000):
        budget.earn()
        granted += budget.spend()
    assert 10 + 198 <= granted <= 10 + 200


def test_it_fills_with_time_but_never_over_the_burst() -> None:
    clock = VirtualClock()
    budget = RetryBudget(RetryConfig(share=0, least_per_s=2, burst=5), clock)
    assert spent(budget, 9) == 5
    clock.advance_to(1.0)
    assert spent(budget, 9) == 2
    clock.advance_to(100.0)
    assert spent(budget, 9) == 5


def test_no_budget_at_all() -> None:
    budget = RetryBudget(RetryConfig(share=0, least_per_s=0, burst=0), VirtualClock())
    budget.earn()
    assert not budget.spend()

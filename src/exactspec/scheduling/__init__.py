"""Many requests in one forward: `Scheduler`, what it hands out, and how it admits."""

from __future__ import annotations

from exactspec.scheduling.policy import FirstCome, Policy, Wait
from exactspec.scheduling.scheduler import Scheduler
from exactspec.scheduling.stats import SchedulerStats
from exactspec.scheduling.ticket import Closed, QueueFull, Ticket

__all__ = ["Closed", "FirstCome", "Policy", "QueueFull", "Scheduler", "SchedulerStats", "Ticket", "Wait"]

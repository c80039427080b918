"""Which variant fits a machine, why, and why the others do not."""

from torchtailor.recommendation.engine import recommend
from torchtailor.recommendation.request import Request, Workload
from torchtailor.recommendation.result import Recommendation

__all__ = ["Recommendation", "Request", "Workload", "recommend"]

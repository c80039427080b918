"""Which variant fits a machine, why, and why the others do not."""

from torchtailor.advise.recommendation.engine import recommend
from torchtailor.advise.recommendation.request import Request, Workload
from torchtailor.advise.recommendation.result import Recommendation

__all__ = ["Recommendation", "Request", "Workload", "recommend"]

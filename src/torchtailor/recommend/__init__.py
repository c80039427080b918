"""Which variant fits a machine, why, and why the others do not."""

from torchtailor.recommend.engine import recommend
from torchtailor.recommend.request import Request, Workload
from torchtailor.recommend.result import Recommendation

__all__ = ["Recommendation", "Request", "Workload", "recommend"]

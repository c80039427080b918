"""A build as a graph of jobs: the policy, the driver and the engine of one process."""

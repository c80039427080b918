"""From a variant to an installable set of wheels: plan, backends, wheelhouse, ledger."""

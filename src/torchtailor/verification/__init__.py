"""Proofs and diagnoses: an artifact's checks, known failures, doctor, report; each check is one line with a reason."""

"""The op suite: small calls over every library that PyTorch uses, each checked against a reference on the CPU.

It runs inside the environment that is verified, which has torch but not torchtailor: these modules import nothing but
the standard library, torch and each other (relatively). Outside of it, `suite.py` is started by its path:

    python .../opsuite/suite.py --device cuda --out results.json
"""

"""placeholder until the hook lands"""
HOOK_NAME = "libtorchtailor-hook.so.1"
def renamed_symbols():
    return frozenset({"dlsym","dlvsym"})

extern "C" int sve256() { return SVE256; }

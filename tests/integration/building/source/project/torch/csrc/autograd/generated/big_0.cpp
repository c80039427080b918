extern "C" int avx512() { return AVX512; }

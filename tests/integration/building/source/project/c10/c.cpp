#include "tailor_values.h"

extern "C" int value_c() { return VALUE; }

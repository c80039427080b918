#include "tailor_values.h"

extern "C" int value_b() { return VALUE; }

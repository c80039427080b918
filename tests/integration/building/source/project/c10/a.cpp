#include "tailor_values.h"

extern "C" int value_a() { return VALUE; }

#include "tailor_values.h"

extern "C" int value_d() { return VALUE; }

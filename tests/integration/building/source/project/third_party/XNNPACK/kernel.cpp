#error "invalid static_cast from xnn_bfloat16 to _Float16"

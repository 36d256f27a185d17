/* VARIANT(name): the exported name of one variant, for example area_forward_f32_avx512. */
#define HAVE_TARGET 1
#if REAL_IS_FLOAT
#define REAL_SUFFIX f32
#else
#define REAL_SUFFIX f64
#endif
#define VARIANT_JOIN(name, real, target) name##_##real##_##target
#define VARIANT_EXPAND(name, real, target) VARIANT_JOIN(name, real, target)
#define VARIANT(name) VARIANT_EXPAND(name, REAL_SUFFIX, VARIANT_SUFFIX)

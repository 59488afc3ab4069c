// Tells whether the tests are built with a sanitizer.
#pragma once

namespace fsdp {

#ifdef __SANITIZE_THREAD__
inline constexpr bool kThreadSanitized = true;
#else
inline constexpr bool kThreadSanitized = false;
#endif

#ifdef __SANITIZE_ADDRESS__
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = kThreadSanitized;
#endif

}  // namespace fsdp

// Compiles fmt's functions once, because LibTorch contains fmt's headers but not its compiled
// library. If each file compiled these functions, its compilation would take three times as long.
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {
// fmt's headers declare these instantiations as extern.
template auto thousands_sep_impl<char>(locale_ref) -> thousands_sep_result<char>;
template auto decimal_point_impl<char>(locale_ref) -> char;
}  // namespace detail
FMT_END_NAMESPACE

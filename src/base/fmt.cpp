// Compiles fmt's own functions once. LibTorch ships fmt's headers without its library. A file that
// compiled these functions itself would take three times as long.
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {
// The headers declare these instantiations as extern.
template auto thousands_sep_impl<char>(locale_ref) -> thousands_sep_result<char>;
template auto decimal_point_impl<char>(locale_ref) -> char;
}  // namespace detail
FMT_END_NAMESPACE

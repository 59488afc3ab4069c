#include "io/name_list.h"

#include <fmt/format.h>

#include <algorithm>

#include "fsdp/program_text.h"

namespace fsdp {

std::string list_of(std::span<const std::string> names) {
  constexpr size_t kMaxNamed = 8;
  std::string list;
  for (size_t i = 0; i < std::min(names.size(), kMaxNamed); ++i) {
    list += fmt::format("{}{}", i > 0 ? ", " : "", quoted_name(names[i]));
  }
  if (names.size() > kMaxNamed) list += fmt::format(" and {} more", names.size() - kMaxNamed);
  return list;
}

std::string counted(std::span<const std::string> names, std::string_view what) {
  return fmt::format("{} {}{}", names.size(), what, names.size() == 1 ? "" : "s");
}

}  // namespace fsdp

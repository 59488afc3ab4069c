#include "io/printable_name.h"

#include <fmt/format.h>

#include "base/printable.h"

namespace fsdp {
namespace {

constexpr size_t kMaxQuotedBytes = 100;

}  // namespace

std::string printable_name(std::string_view name) { return printable(name); }

std::string quoted_name(std::string_view name) {
  if (name.size() <= kMaxQuotedBytes) return fmt::format("'{}'", printable_name(name));
  size_t cut = kMaxQuotedBytes;
  while (cut > kMaxQuotedBytes - 4 && (static_cast<unsigned char>(name[cut]) & 0xc0) == 0x80) --cut;
  return fmt::format("'{}…' ({} bytes)", printable_name(name.substr(0, cut)), name.size());
}

}  // namespace fsdp

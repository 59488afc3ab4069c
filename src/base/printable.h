// Text from elsewhere, made fit for a terminal.
#pragma once

#include <string>
#include <string_view>

namespace fsdp {

// Control characters and bytes that are not UTF-8 become \xNN; everything else stays, and so do the
// characters of `kept`.
std::string printable(std::string_view text, std::string_view kept = {});

}  // namespace fsdp

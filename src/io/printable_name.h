// Names that come from files, made fit for a terminal and an error line.
#pragma once

#include <string>
#include <string_view>

namespace fsdp {

// Control characters and bytes that are not UTF-8 become \xNN; everything else stays.
std::string printable_name(std::string_view name);

// The same in single quotes, cut to about 100 bytes: hostile files may have names of megabytes.
std::string quoted_name(std::string_view name);

}  // namespace fsdp

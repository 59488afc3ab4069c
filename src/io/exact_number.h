// Writes numbers as text that keeps every bit, and reads them back.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fsdp {

// Returns "-12".
std::string exact_text(int64_t value);
// Returns hexadecimal text such as "0x1.8p+1", or "inf", "-inf", or "nan(7ff8000000000000)" with
// the bits of the value.
std::string exact_text(double value);

// Return the value if `text` is exactly what exact_text returns for it. Return nothing for any
// other text.
std::optional<int64_t> integer_from_text(std::string_view text);
std::optional<double> double_from_text(std::string_view text);

}  // namespace fsdp

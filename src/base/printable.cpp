#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>

#include "fsdp/program_text.h"

namespace fsdp {
namespace {

// Returns the number of bytes in the UTF-8 character at the start of `text`, or 0 if it must not be
// printed.
size_t shown_character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
  const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  // A byte from 0x80 to 0xc1 cannot begin a character: it continues one, or begins an encoding that
  // is longer than necessary.
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  uint32_t code = first & (0xffu >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3f);
  }
  constexpr std::array<uint32_t, 5> kSmallest{0, 0, 0xa0, 0x800, 0x10000};  // excludes C1 controls
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  return code >= kSmallest[length] && code <= 0x10ffff && !surrogate ? length : 0;
}

// Returns true for a character that a shell does not interpret.
bool is_plain(unsigned char c) {
  return std::isalnum(c) != 0 || std::string_view("-_./=:,+@%").find(c) != std::string_view::npos;
}

std::string quoted_word(const std::string& word) {
  if (!word.empty() && std::ranges::all_of(word, is_plain)) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

}  // namespace

std::string printable(std::string_view text, std::string_view kept) {
  std::string shown;
  for (size_t i = 0; i < text.size();) {
    const bool stays = kept.find(text[i]) != std::string_view::npos;
    const size_t length = stays ? 1 : shown_character(text.substr(i));
    if (length == 0) {
      shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[i++]));
    } else {
      shown += text.substr(i, length);
      i += length;
    }
  }
  return shown;
}

std::string quoted_name(std::string_view name) {
  constexpr size_t kMostBytes = 100;
  if (name.size() <= kMostBytes) return fmt::format("'{}'", printable(name));
  size_t cut = kMostBytes;
  while (cut > kMostBytes - 4 && (static_cast<unsigned char>(name[cut]) & 0xc0) == 0x80) --cut;
  return fmt::format("'{}…' ({} bytes)", printable(name.substr(0, cut)), name.size());
}

std::string shell_command(const std::vector<std::string>& words) {
  std::string command;
  for (const std::string& word : words) command += (command.empty() ? "" : " ") + quoted_word(word);
  return command;
}

}  // namespace fsdp

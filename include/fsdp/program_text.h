// Functions for text that users read or write: sizes, names from files or command lines, help.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

// Returns a size as "512 B", "1.5 KiB", "43.3 MiB" or "2.0 GiB".
std::string format_bytes(int64_t bytes);
// Returns the number of bytes that a text such as "16GiB", "1.5 GB", "500MB" or "1073741824" means.
// KiB is 1024 bytes and KB is 1000 bytes. The case of letters does not matter. Fractions of a byte
// are rounded down. Returns nothing for other text, a negative size, or a size beyond 2^63.
std::optional<int64_t> parse_bytes(std::string_view text);
// If `text` is a number below a million without a unit, returns a question such as "add a unit:
// 80GiB, or 80B for bytes", because the user probably did not mean bytes. Returns an empty string
// for other text and for 0.
std::string question_of_unit(std::string_view text);
// Returns text that parse_bytes reads as exactly `bytes`, such as "16GiB" or "500B".
std::string spell_bytes(int64_t bytes);

// Returns `text` in a form that is safe for a terminal or an error line. Control characters and
// bytes that are not UTF-8 become \xNN, except the characters in `kept`.
std::string printable(std::string_view text, std::string_view kept = {});
// Returns printable(name) in single quotes, cut to about 100 bytes, because a name in a malicious
// file can be megabytes long.
std::string quoted_name(std::string_view name);
// Returns the words as a command for a shell. Words with other characters than letters, digits and
// -_./=:,+@% are in single quotes.
std::string shell_command(const std::vector<std::string>& words);

// Returns the name that is most similar to `typed`, or an empty string if every name differs from
// `typed` in more than three letters or in about half of its letters.
std::string nearest_of(std::string_view typed, const std::vector<std::string>& names);
// Returns the Levenshtein distance: the least number of letters to insert, delete or replace.
size_t edit_distance(std::string_view from, std::string_view to);

// Returns `text` as lines of at most `columns` characters. Lines break between words. A word is
// broken only if it is longer than a line. Returns at least one line.
std::vector<std::string> wrapped(std::string_view text, size_t columns);
// Returns one row of a help text: a flag and its meaning, on lines of at most 80 columns:
// "  --prefetch N                  units gathered ahead [1]\n".
std::string help_row(std::string_view flag, std::string_view meaning);
// Returns the last section of a help text: the exit codes of programs.
std::string_view exit_codes_help();

}  // namespace fsdp

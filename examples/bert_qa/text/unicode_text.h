// Handles UTF-8 text as Unicode code points. All offsets in this folder count code points.
//
// Malformed UTF-8 never throws here. Each byte that does not start or continue a valid sequence
// counts as one U+FFFD of length 1. Overlong forms, surrogates and values above U+10FFFF are also
// malformed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace bert_qa {

inline constexpr char32_t kReplacementCharacter = 0xFFFD;
inline constexpr char32_t kCodePointEnd = 0x110000;  // one past the last code point

struct DecodedChar {
  char32_t code_point = 0;
  int32_t byte_length = 0;
};

// Returns the code point that starts at byte `at`. Requires: at < text.size().
DecodedChar decode_utf8(std::string_view text, size_t at);

// Appends a code point. Requires: the code point is a Unicode scalar value.
void append_utf8(char32_t code_point, std::string& text);

int64_t count_code_points(std::string_view text);

// Returns the byte offset of code point number `index`, or text.size() if the text is shorter.
size_t byte_of_code_point(std::string_view text, int64_t index);

// Returns the code points [begin, end) of the text, limited to the text's length. The result is
// Python's text[begin:end] for non-negative bounds.
std::string_view code_point_slice(std::string_view text, int64_t begin, int64_t end);

// Returns true for well-formed UTF-8.
bool is_valid_utf8(std::string_view text);

// Returns the result of Python's str.isspace, which str.split and str.strip use: White_Space and
// U+001C..U+001F.
bool is_python_space(char32_t code_point);
// Removes leading white space like Python's str.lstrip.
std::string_view strip_left(std::string_view text);
// Returns true for a letter, a number or '_', like \w in Python's re.
bool is_word_character(char32_t code_point);
// Converts each character to lower case like Python's str.lower. There are two special cases:
// U+0130 becomes two characters, and a capital sigma at the end of a word becomes the final form.
std::string to_lower(std::string_view text);

}  // namespace bert_qa

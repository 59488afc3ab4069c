#include "bert_qa/text/unicode_text.h"

#include <utf8proc.h>

namespace bert_qa {
namespace {

constexpr char32_t kCapitalSigma = 0x3A3;
constexpr char32_t kFinalSigma = 0x3C2;
constexpr char32_t kCapitalDottedI = 0x130;
constexpr char32_t kCombiningDotAbove = 0x307;

bool is_continuation(unsigned char byte) { return (byte & 0xC0) == 0x80; }

utf8proc_category_t general_category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

bool is_letter(char32_t c) {
  const utf8proc_category_t category = general_category(c);
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

// Returns true for characters that the final-sigma rule skips: marks, format characters and
// modifiers.
bool is_case_ignorable(char32_t c) {
  const utf8proc_category_t category = general_category(c);
  return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_ME ||
         category == UTF8PROC_CATEGORY_CF || category == UTF8PROC_CATEGORY_LM ||
         category == UTF8PROC_CATEGORY_SK || c == '\'' || c == '.' || c == ':' || c == 0xB7 ||
         c == 0x2018 || c == 0x2019;
}

bool letter_follows(std::string_view text, size_t at) {
  while (at < text.size()) {
    const DecodedChar next = decode_utf8(text, at);
    if (!is_case_ignorable(next.code_point)) return is_letter(next.code_point);
    at += next.byte_length;
  }
  return false;
}

}  // namespace

DecodedChar decode_utf8(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const DecodedChar malformed{kReplacementCharacter, 1};
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const int32_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  // 0x80 to 0xBF are continuation bytes; 0xC0 and 0xC1 could only start overlong forms.
  if (lead < 0xC2 || lead > 0xF4 || at + length > text.size()) return malformed;
  char32_t c = lead & (0xFF >> (length + 1));
  for (int32_t i = 1; i < length; ++i) {
    if (!is_continuation(byte(i))) return malformed;
    c = (c << 6) | (byte(i) & 0x3F);
  }
  const bool overlong = (length == 3 && c < 0x800) || (length == 4 && c < 0x10000);
  const bool surrogate = c >= 0xD800 && c < 0xE000;
  if (overlong || surrogate || c >= kCodePointEnd) return malformed;
  return {c, length};
}

void append_utf8(char32_t c, std::string& text) {
  const auto put = [&](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | (c >> 6));
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | (c >> 12));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | (c >> 18));
    put(0x80 | ((c >> 12) & 0x3F));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

int64_t count_code_points(std::string_view text) {
  int64_t count = 0;
  for (size_t at = 0; at < text.size(); ++count) at += decode_utf8(text, at).byte_length;
  return count;
}

size_t byte_of_code_point(std::string_view text, int64_t index) {
  size_t at = 0;
  for (; index > 0 && at < text.size(); --index) at += decode_utf8(text, at).byte_length;
  return at;
}

std::string_view code_point_slice(std::string_view text, int64_t begin, int64_t end) {
  const size_t first = byte_of_code_point(text, begin);
  const std::string_view rest = text.substr(first);
  return rest.substr(0, byte_of_code_point(rest, end - begin));
}

bool is_valid_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const DecodedChar c = decode_utf8(text, at);
    if (c.code_point == kReplacementCharacter && c.byte_length == 1) return false;
    at += c.byte_length;
  }
  return true;
}

bool is_python_space(char32_t c) {
  if (c < 0x80) return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

std::string_view strip_left(std::string_view text) {
  while (!text.empty()) {
    const DecodedChar c = decode_utf8(text, 0);
    if (!is_python_space(c.code_point)) break;
    text.remove_prefix(c.byte_length);
  }
  return text;
}

bool is_word_character(char32_t c) {
  const utf8proc_category_t category = general_category(c);
  return c == '_' || is_letter(c) ||
         (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO);
}

std::string to_lower(std::string_view text) {
  std::string lower;
  lower.reserve(text.size());
  bool after_letter = false;  // the last character that is not case-ignorable was a letter
  for (size_t at = 0; at < text.size();) {
    const DecodedChar c = decode_utf8(text, at);
    at += c.byte_length;
    if (c.code_point == kCapitalSigma && after_letter && !letter_follows(text, at)) {
      append_utf8(kFinalSigma, lower);
    } else {
      append_utf8(utf8proc_tolower(static_cast<utf8proc_int32_t>(c.code_point)), lower);
      if (c.code_point == kCapitalDottedI) append_utf8(kCombiningDotAbove, lower);
    }
    if (!is_case_ignorable(c.code_point)) after_letter = is_letter(c.code_point);
  }
  return lower;
}

}  // namespace bert_qa

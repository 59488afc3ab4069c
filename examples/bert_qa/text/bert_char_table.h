// Tabulates the result of BERT's text normalisation and word splitting for each code point.
//
// The steps are those of the norm (see bert_unicode_ranges.h): clean; put spaces around Chinese
// characters; decompose canonically and strip accents; lower-case; split on white space and
// punctuation. Each step depends on a single character, except the canonical ordering of combining
// marks.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace bert_qa {

// The steps to apply.
struct NormalizationOptions {
  bool clean_text = true;  // removes control characters; white space becomes a space
  bool space_chinese_characters = true;
  bool strip_accents = true;  // decomposes and removes non-spacing marks
  bool lower_case = true;
};

enum class CharKind : uint8_t {
  kWord,     // part of a word, replaced by text()
  kSpace,    // ends a word
  kSingle,   // a word of its own (punctuation, a Chinese character), replaced by text()
  kDropped,  // removed
  kOrdered,  // has a combining mark that is kept: the order of marks matters
};

// The table, in pages of 256 code points; equal pages are shared.
class BertCharTable {
 public:
  explicit BertCharTable(const NormalizationOptions& options);

  struct Entry {
    CharKind kind;
    bool verbatim;    // the replacement is the character itself
    uint8_t size;     // bytes of the replacement
    uint32_t offset;  // offset in the pool
  };
  const Entry& entry(char32_t c) const { return pages_[page_of_[c >> 8]][c & 0xFF]; }
  // Returns the replacement. Requires: `entry` is from this table and is not verbatim.
  std::string_view text(const Entry& entry) const { return {&pool_[entry.offset], entry.size}; }

  const NormalizationOptions& options() const { return options_; }
  // The single steps, for the characters of kind kOrdered.
  bool is_cleaned_away(char32_t c) const;
  // Returns the canonical decomposition. Without strip_accents, returns only c.
  std::u32string decompose(char32_t c) const;
  bool is_stripped(char32_t c) const;
  std::u32string to_lower(char32_t c) const;

 private:
  using Page = std::array<Entry, 256>;

  Entry make_entry(char32_t c);

  NormalizationOptions options_;
  std::array<uint16_t, 0x1100> page_of_{};
  std::vector<Page> pages_;
  std::string pool_;
};

// Returns true for U+0021..U+007E except letters and digits, and for characters that have a
// category P* in the norm.
bool is_bert_punctuation(char32_t c);
// Returns the canonical combining class of the norm.
int canonical_combining_class(char32_t c);

}  // namespace bert_qa

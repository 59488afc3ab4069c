#include "bert_qa/text/bert_char_table.h"

#include <utf8proc.h>

#include <algorithm>
#include <cctype>

#include "bert_qa/text/bert_unicode_ranges.h"
#include "bert_qa/text/unicode_text.h"

namespace bert_qa {
namespace {

constexpr int kMaxDecomposition = 32;  // the longest canonical decomposition has 4

template <size_t N>
bool is_in(const bert_unicode::Range (&ranges)[N], char32_t c) {
  const auto* next = std::upper_bound(std::begin(ranges), std::end(ranges), c,
                                      [](char32_t key, auto& range) { return key < range.first; });
  return next != std::begin(ranges) && c <= (next - 1)->last;
}

utf8proc_category_t category_of(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

bool is_control(char32_t c) {
  if (c == '\t' || c == '\n' || c == '\r') return false;
  const utf8proc_category_t category = category_of(c);
  return category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_CO ||
         (category == UTF8PROC_CATEGORY_CF && !is_in(bert_unicode::kNotControl, c));
}

bool is_white_space(char32_t c) {
  const utf8proc_category_t category = category_of(c);
  return category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL ||
         category == UTF8PROC_CATEGORY_ZP || (c >= 0x09 && c <= 0x0D) || c == 0x85;
}

bool is_nonspacing_mark(char32_t c) {
  if (category_of(c) == UTF8PROC_CATEGORY_MN) return !is_in(bert_unicode::kNotMark, c);
  return is_in(bert_unicode::kStillMark, c);
}

// Returns true for the blocks of the norm. Its extension E begins later than in Google's code.
bool is_chinese(char32_t c) {
  constexpr bert_unicode::Range kBlocks[] = {
      {0x3400, 0x4DBF},   {0x4E00, 0x9FFF},   {0xF900, 0xFAFF},   {0x20000, 0x2A6DF},
      {0x2A700, 0x2B73F}, {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF}, {0x2F800, 0x2FA1F}};
  return is_in(kBlocks, c);
}

// Returns true if a page equals the preceding page, so that it need not be computed. Planes 4 to 13
// are not assigned. Planes 15 and 16 are for private use, except their last two characters. So in
// each of these planes all pages except the last are equal.
bool is_as_before(char32_t page) {
  const char32_t plane = page >> 8, in_plane = page & 0xFF;
  return plane >= 4 && plane != 14 && in_plane != 0 && in_plane != 0xFF;
}

char32_t lower_of(char32_t c) {
  for (const bert_unicode::LowerRange& range : bert_unicode::kNewCapitals) {
    if (c >= range.first && c <= range.last) return c + range.distance;
  }
  return utf8proc_tolower(static_cast<utf8proc_int32_t>(c));
}

}  // namespace

bool is_bert_punctuation(char32_t c) {
  if (c < 0x80) return c > 0x20 && c < 0x7F && !std::isalnum(static_cast<int>(c));
  const utf8proc_category_t category = category_of(c);
  if (category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO) {
    return !is_in(bert_unicode::kNotPunctuation, c);
  }
  return is_in(bert_unicode::kStillPunctuation, c);
}

int canonical_combining_class(char32_t c) {
  if (is_in(bert_unicode::kNotCombining, c)) return 0;
  return utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class;
}

BertCharTable::BertCharTable(const NormalizationOptions& options) : options_(options) {
  const auto same = [](const Page& a, const Page& b) {
    return std::equal(a.begin(), a.end(), b.begin(), [](const Entry& x, const Entry& y) {
      return x.kind == y.kind && x.verbatim == y.verbatim && x.size == y.size &&
             x.offset == y.offset;
    });
  };
  for (char32_t high = 0; high < page_of_.size(); ++high) {
    if (is_as_before(high)) {
      page_of_[high] = page_of_[high - 1];
      continue;
    }
    Page page;
    for (char32_t low = 0; low < page.size(); ++low) page[low] = make_entry(high << 8 | low);
    // Equal pages are neighbours (ideographs, private use, unassigned planes), so only the last
    // page is compared.
    if (pages_.empty() || !same(pages_.back(), page)) pages_.push_back(page);
    page_of_[high] = static_cast<uint16_t>(pages_.size() - 1);
  }
}

bool BertCharTable::is_cleaned_away(char32_t c) const {
  return options_.clean_text && (c == 0 || c == kReplacementCharacter || is_control(c));
}

std::u32string BertCharTable::decompose(char32_t c) const {
  if (!options_.strip_accents || c < 0x80 || is_in(bert_unicode::kNotDecomposed, c)) {
    return std::u32string(1, c);
  }
  utf8proc_int32_t parts[kMaxDecomposition];
  int boundary = 0;
  const utf8proc_ssize_t count = utf8proc_decompose_char(
      static_cast<utf8proc_int32_t>(c), parts, kMaxDecomposition, UTF8PROC_DECOMPOSE, &boundary);
  if (count <= 0 || count > kMaxDecomposition) return std::u32string(1, c);
  return std::u32string(parts, parts + count);
}

bool BertCharTable::is_stripped(char32_t c) const {
  return options_.strip_accents && is_nonspacing_mark(c);
}

std::u32string BertCharTable::to_lower(char32_t c) const {
  if (!options_.lower_case) return std::u32string(1, c);
  if (c == 0x130) return U"i\u0307";  // the only capital that becomes two characters
  return std::u32string(1, lower_of(c));
}

BertCharTable::Entry BertCharTable::make_entry(char32_t c) {
  const bool surrogate = c >= 0xD800 && c < 0xE000;
  if (surrogate || is_cleaned_away(c)) return {CharKind::kDropped, true, 0, 0};
  if (is_white_space(c)) return {CharKind::kSpace, true, 0, 0};
  CharKind kind =
      options_.space_chinese_characters && is_chinese(c) ? CharKind::kSingle : CharKind::kWord;
  std::u32string replaced;
  for (const char32_t part : decompose(c)) {
    if (is_stripped(part)) continue;
    // A mark that stays: its place depends on its neighbours, so no table can hold it.
    if (options_.strip_accents && canonical_combining_class(part) != 0) kind = CharKind::kOrdered;
    replaced += to_lower(part);
  }
  if (replaced.empty()) return {CharKind::kDropped, true, 0, 0};
  if (kind == CharKind::kOrdered) return {kind, true, 0, 0};
  // No character decomposes into punctuation plus another character that is kept.
  if (replaced.size() == 1 && is_bert_punctuation(replaced[0])) kind = CharKind::kSingle;
  if (replaced == std::u32string(1, c)) return {kind, true, 0, 0};
  Entry entry{kind, false, 0, static_cast<uint32_t>(pool_.size())};
  for (const char32_t part : replaced) append_utf8(part, pool_);
  entry.size = static_cast<uint8_t>(pool_.size() - entry.offset);
  return entry;
}

}  // namespace bert_qa

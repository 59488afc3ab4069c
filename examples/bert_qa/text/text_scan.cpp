#include "bert_qa/text/text_scan.h"

#include <algorithm>
#include <cstring>

#include "bert_qa/text/unicode_text.h"

namespace bert_qa {

int32_t TextScan::scan(std::string_view text, int32_t first) {
  text_ = text;
  at_ = 0;
  code_point_ = first;
  while (at_ < text_.size()) {
    switch (tokenizer_.kinds_[static_cast<uint8_t>(text_[at_])]) {
      case AsciiKind::kWord:
        scan_ascii_word();
        break;
      case AsciiKind::kSpace:
        end_word();
        ++at_;
        ++code_point_;
        break;
      case AsciiKind::kSingle:
        end_word();
        emit_pieces(&text_[at_], 1, [this](int32_t) { return code_point_; });
        ++at_;
        ++code_point_;
        break;
      case AsciiKind::kDropped:
        ++at_;
        ++code_point_;
        break;
      case AsciiKind::kNotAscii:
        scan_other();
        break;
    }
  }
  end_word();
  return code_point_;
}

// Scans ASCII letters and digits, the usual case. If the word ends at a space or punctuation, it is
// looked up in place without a copy, because the trie folds case.
void TextScan::scan_ascii_word() {
  const char* begin = text_.data() + at_;
  const char* end = text_.data() + text_.size();
  const char* stop = begin;
  AsciiKind next = AsciiKind::kSpace;
  while (stop != end) {
    next = tokenizer_.kinds_[static_cast<uint8_t>(*stop)];
    if (next != AsciiKind::kWord) break;
    ++stop;
  }
  if (stop == end) next = AsciiKind::kSpace;
  const auto size = static_cast<int32_t>(stop - begin);
  // A dropped or other character does not end the word, so its parts must be collected.
  const bool whole = next == AsciiKind::kSpace || next == AsciiKind::kSingle;
  if (whole && word_chars_ == 0 && size <= kMaxWordChars) {
    emit_pieces(begin, size, [this](int32_t i) { return code_point_ + i; });
  } else {
    append_ascii(begin, size);
  }
  at_ += size;
  code_point_ += size;
}

void TextScan::scan_other() {
  const DecodedChar c = decode_utf8(text_, at_);
  const BertCharTable& table = tokenizer_.table_;
  const BertCharTable::Entry& entry = table.entry(c.code_point);
  const std::string_view bytes =
      entry.verbatim ? text_.substr(at_, c.byte_length) : table.text(entry);
  switch (entry.kind) {
    case CharKind::kWord:
      append(bytes, code_point_);
      break;
    case CharKind::kSingle:
      end_word();
      append(bytes, code_point_);
      end_word();
      break;
    case CharKind::kSpace:
      end_word();
      break;
    case CharKind::kDropped:
      break;
    case CharKind::kOrdered:
      scan_marks();
      return;
  }
  at_ += c.byte_length;
  ++code_point_;
}

// Returns the begin of the sequence of combining marks that contains the character at at_. Marks
// before at_ were already dropped, but they take part in the ordering.
size_t TextScan::begin_of_marks() const {
  const auto starts_afresh = [this](char32_t c) {
    return canonical_combining_class(tokenizer_.table_.decompose(c).front()) == 0;
  };
  size_t begin = at_;
  if (starts_afresh(decode_utf8(text_, at_).code_point)) return begin;
  size_t at = at_;
  while (at > 0) {
    do {
      --at;
    } while (at > 0 && (text_[at] & 0xC0) == 0x80);
    const char32_t c = decode_utf8(text_, at).code_point;
    if (tokenizer_.table_.is_cleaned_away(c)) continue;
    if (canonical_combining_class(tokenizer_.table_.decompose(c).back()) == 0) break;
    begin = at;
    if (starts_afresh(c)) break;
  }
  return begin;
}

// [Note: sources of reordered marks] For each character of the decomposed text, the norm stores a
// flag: the character replaces a character of the original text, or it was inserted. Canonical
// ordering moves these flags together with the marks. Afterwards the norm counts sources along the
// result. So the k-th mark that is not inserted gets the k-th character of the sequence as its
// source, even if it was made from another character. An inserted mark has the source of its
// predecessor.
void TextScan::scan_marks() {
  const BertCharTable& table = tokenizer_.table_;
  std::vector<Mark> marks;
  std::vector<int32_t> sources;
  const size_t begin = begin_of_marks();
  int32_t code_point =
      code_point_ - static_cast<int32_t>(count_code_points(text_.substr(begin, at_ - begin)));
  int32_t source = code_point;
  const size_t here = at_;
  for (at_ = begin; at_ < text_.size(); ++code_point) {
    const DecodedChar c = decode_utf8(text_, at_);
    if (!table.is_cleaned_away(c.code_point)) {
      const std::u32string parts = table.decompose(c.code_point);
      if (at_ > here && canonical_combining_class(parts.front()) == 0) break;
      for (size_t i = 0; i < parts.size(); ++i) {
        const int combining_class = canonical_combining_class(parts[i]);
        if (combining_class == 0) {
          emit_marks(marks, sources, source);
          source = code_point;
          if (at_ >= here) emit_normalized(parts[i], source);
        } else {
          marks.push_back({parts[i], combining_class, i > 0});
          if (i == 0) sources.push_back(code_point);
        }
      }
    }
    at_ += c.byte_length;
  }
  emit_marks(marks, sources, source);
  code_point_ = code_point;
}

void TextScan::emit_marks(std::vector<Mark>& marks, std::vector<int32_t>& sources,
                          int32_t& source) {
  std::stable_sort(marks.begin(), marks.end(), [](const Mark& a, const Mark& b) {
    return a.combining_class < b.combining_class;
  });
  size_t next = 0;
  for (const Mark& mark : marks) {
    if (!mark.inserted) source = sources[next++];
    emit_normalized(mark.code_point, source);
  }
  marks.clear();
  sources.clear();
}

void TextScan::emit_normalized(char32_t c, int32_t source) {
  if (tokenizer_.table_.is_stripped(c)) return;
  for (const char32_t lower : tokenizer_.table_.to_lower(c)) {
    const bool single = is_bert_punctuation(lower);
    if (single) end_word();
    std::string bytes;
    append_utf8(lower, bytes);
    append(bytes, source);
    if (single) end_word();
  }
}

void TextScan::append(std::string_view bytes, int32_t source) {
  if (word_chars_ == 0) source_[0] = source;
  word_last_ = source;
  // A word that is too long becomes [UNK]: only its first and last source matter.
  if (word_chars_ > kMaxWordChars) return;
  for (const char byte : bytes) word_chars_ += (byte & 0xC0) != 0x80;
  if (word_chars_ > kMaxWordChars) return;
  std::memcpy(word_ + word_size_, bytes.data(), bytes.size());
  std::fill_n(source_ + word_size_, bytes.size(), source);
  word_size_ += static_cast<int32_t>(bytes.size());
}

void TextScan::append_ascii(const char* bytes, int32_t count) {
  if (word_chars_ == 0) source_[0] = code_point_;
  word_last_ = code_point_ + count - 1;
  word_chars_ = std::min(count, kMaxWordChars + 1) + word_chars_;
  if (word_chars_ > kMaxWordChars) {
    word_chars_ = kMaxWordChars + 1;
    return;
  }
  for (int32_t i = 0; i < count; ++i) {
    word_[word_size_] = static_cast<char>(tokenizer_.lower_[static_cast<uint8_t>(bytes[i])]);
    source_[word_size_++] = code_point_ + i;
  }
}

void TextScan::end_word() {
  if (word_chars_ == 0) return;
  if (word_chars_ > kMaxWordChars) {
    tokens_.ids.push_back(tokenizer_.vocab_.unk_id());
    tokens_.spans.push_back({source_[0], word_last_ + 1});
  } else {
    emit_pieces(word_, word_size_, [this](int32_t i) { return source_[i]; });
  }
  word_size_ = 0;
  word_chars_ = 0;
}

// Appends the pieces of a word. Each piece is the longest that matches. If no piece matches the
// remainder of the word, the whole word is [UNK].
template <typename Source>
void TextScan::emit_pieces(const char* word, int32_t size, Source source_of) {
  const WordPieceTrie& trie = tokenizer_.trie_;
  const size_t before = tokens_.ids.size();
  int32_t root = WordPieceTrie::kWordRoot;
  for (int32_t begin = 0; begin < size;) {
    int32_t best = -1;
    int32_t best_end = begin;
    int32_t node = root;
    for (int32_t i = begin; i < size; ++i) {
      node = trie.child(node, static_cast<uint8_t>(word[i]));
      if (node < 0) break;
      if (const int32_t token = trie.token(node); token >= 0) {
        best = token;
        best_end = i + 1;
      }
    }
    if (best < 0) {
      tokens_.ids.resize(before);
      tokens_.spans.resize(before);
      tokens_.ids.push_back(tokenizer_.vocab_.unk_id());
      tokens_.spans.push_back({source_of(0), source_of(size - 1) + 1});
      return;
    }
    tokens_.ids.push_back(best);
    tokens_.spans.push_back({source_of(begin), source_of(best_end - 1) + 1});
    begin = best_end;
    root = WordPieceTrie::kContinuationRoot;
  }
}

}  // namespace bert_qa

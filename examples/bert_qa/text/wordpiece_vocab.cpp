#include "bert_qa/text/wordpiece_vocab.h"

#include <fmt/format.h>
#include <fsdp/program_text.h>
#include <fsdp/whole_file.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "bert_qa/text/unicode_text.h"
#include "fsdp/error.h"
#include "io/file_kind.h"

namespace bert_qa {
namespace {

[[noreturn]] void refuse(const std::string& name, int64_t line, const std::string& what,
                         const std::string& hint) {
  throw fsdp::IoError(fsdp::ExitCode::kCorruptData,
                      {.what = what,
                       .where = line > 0 ? fmt::format("{} line {}", name, line) : name,
                       .hint = hint});
}

std::vector<std::string> split_lines(std::string_view text, const std::string& name) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    const auto number = static_cast<int64_t>(lines.size()) + 1;
    if (line.empty()) {
      refuse(name, number, "the vocabulary has an empty line", "write one token on every line");
    }
    if (line.find('\r') != std::string_view::npos) {
      refuse(name, number, "a line of the vocabulary has a carriage return inside",
             "end every line with LF or CR LF");
    }
    if (line.find('\0') != std::string_view::npos || !is_valid_utf8(line)) {
      refuse(name, number, "the vocabulary is not UTF-8 text", "pass the model's vocab.txt");
    }
    if (number > WordPieceVocab::kMaxTokens) {
      refuse(name, number,
             fmt::format("the vocabulary has more than {} tokens", WordPieceVocab::kMaxTokens),
             "pass the model's vocab.txt");
    }
    lines.emplace_back(line);
  }
  return lines;
}

}  // namespace

WordPieceVocab WordPieceVocab::read(const std::filesystem::path& path,
                                    const SpecialTokens& special) {
  return parse(fsdp::read_file(path), path.string(), special);
}

WordPieceVocab WordPieceVocab::parse(std::string_view text, const std::string& name,
                                     const SpecialTokens& special) {
  // A vocabulary can look like CSV, because a token may be a comma.
  if (fsdp::file_kind(text) != fsdp::FileKind::kCsv) {
    fsdp::refuse_other_kind(text, name, "a vocabulary");
  }
  if (text.starts_with("\xef\xbb\xbf")) {
    refuse(name, 1, "the vocabulary starts with a byte order mark", "save it as plain UTF-8");
  }
  return of_tokens(split_lines(text, name), name, special);
}

WordPieceVocab WordPieceVocab::of_tokens(std::vector<std::string> tokens, const std::string& name,
                                         const SpecialTokens& special) {
  WordPieceVocab vocab;
  vocab.tokens_ = std::move(tokens);
  if (vocab.tokens_.empty()) {
    refuse(name, 0, "the vocabulary is empty", "write one token on every line");
  }
  auto& sorted = vocab.sorted_;
  sorted.resize(vocab.tokens_.size());
  std::iota(sorted.begin(), sorted.end(), 0);
  // Stable, so that of equal tokens the error names the later line.
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](int32_t a, int32_t b) { return vocab.tokens_[a] < vocab.tokens_[b]; });
  for (size_t i = 1; i < sorted.size(); ++i) {
    if (vocab.tokens_[sorted[i - 1]] != vocab.tokens_[sorted[i]]) continue;
    refuse(name, sorted[i] + 1,
           fmt::format("token {} is already on line {}",
                       fsdp::quoted_name(vocab.tokens_[sorted[i]]), sorted[i - 1] + 1),
           "remove one of the lines: the line number is the id");
  }
  const std::array<const std::string*, 5> names = {&special.pad, &special.unk, &special.cls,
                                                   &special.sep, &special.mask};
  for (size_t i = 0; i < names.size(); ++i) {
    const std::optional<int32_t> id = vocab.find(*names[i]);
    if (!id) {
      refuse(name, 0,
             fmt::format("the vocabulary has no special token {}", fsdp::quoted_name(*names[i])),
             "use a BERT vocabulary, with [PAD], [UNK], [CLS], [SEP] and [MASK]");
    }
    vocab.special_ids_[i] = *id;
  }
  return vocab;
}

std::optional<int32_t> WordPieceVocab::find(std::string_view token) const {
  const auto at =
      std::lower_bound(sorted_.begin(), sorted_.end(), token,
                       [&](int32_t id, std::string_view key) { return tokens_[id] < key; });
  if (at == sorted_.end() || tokens_[*at] != token) return std::nullopt;
  return *at;
}

}  // namespace bert_qa

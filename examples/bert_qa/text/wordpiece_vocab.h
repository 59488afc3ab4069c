// Holds the vocabulary of a WordPiece model. vocab.txt has one token per line. The id of a token is
// its line number, counted from 0.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace bert_qa {

// The texts of the special tokens.
struct SpecialTokens {
  std::string pad = "[PAD]";
  std::string unk = "[UNK]";
  std::string cls = "[CLS]";
  std::string sep = "[SEP]";
  std::string mask = "[MASK]";
};

// The vocabulary.
class WordPieceVocab {
 public:
  // Reads a vocab.txt. Lines end in \n or \r\n. The last line may have no line end.
  // Errors: IoError kIoError if the file cannot be read. IoError kCorruptData, which names the file
  //   and the line, if the file is empty, has an empty or repeated line, is not UTF-8, or lacks a
  //   special token.
  static WordPieceVocab read(const std::filesystem::path& path, const SpecialTokens& special = {});
  // Parses a text in memory. `name` is the file name in errors.
  static WordPieceVocab parse(std::string_view text, const std::string& name,
                              const SpecialTokens& special = {});
  // Makes a vocabulary from tokens in the order of their ids. Requires: vocab.txt could store the
  // tokens.
  static WordPieceVocab of_tokens(std::vector<std::string> tokens, const std::string& name,
                                  const SpecialTokens& special = {});

  static constexpr int64_t kMaxTokens = int64_t{1} << 24;

  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }
  // Requires: 0 <= id < size().
  const std::string& token(int64_t id) const { return tokens_[id]; }
  // Returns the id of a token. The time is logarithmic in size().
  std::optional<int32_t> find(std::string_view token) const;

  int32_t pad_id() const { return special_ids_[0]; }
  int32_t unk_id() const { return special_ids_[1]; }
  int32_t cls_id() const { return special_ids_[2]; }
  int32_t sep_id() const { return special_ids_[3]; }
  int32_t mask_id() const { return special_ids_[4]; }
  // Returns the ids of the special tokens above.
  const std::array<int32_t, 5>& special_ids() const { return special_ids_; }

 private:
  WordPieceVocab() = default;

  std::vector<std::string> tokens_;  // in the order of ids
  std::vector<int32_t> sorted_;      // ids in the byte order of their tokens
  std::array<int32_t, 5> special_ids_{};
};

}  // namespace bert_qa

#include "bert_qa/hf/tokenizer_json.h"

#include <fmt/format.h>
#include <fsdp/program_text.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>
#include <vector>

#include "fsdp/error.h"
#include "io/json_text.h"

namespace bert_qa {
namespace {

using nlohmann::json;

constexpr int64_t kWordCharacters = 100;  // longest word of TextScan
// The limit allows for the values of a vocabulary and for those in the rest of the file.
constexpr int64_t kMostValues = WordPieceVocab::kMaxTokens + fsdp::kMaxDocumentValues;
constexpr fsdp::JsonLimits kLimits{
    .string_bytes = 2 << 20, .keys = kMostValues, .values = kMostValues};

// An object of the file, with the name that messages use.
class Part {
 public:
  Part(const json& value, std::string name, const std::string& file)
      : value_(value), name_(std::move(name)), file_(file) {
    if (!value.is_object()) {
      corrupt(fmt::format("{} is not an object", name_.empty() ? "the file" : name_));
    }
  }

  const json& at(const char* key) const {
    const auto found = value_.find(key);
    if (found == value_.end()) corrupt(fmt::format("{} is missing", full(key)));
    return *found;
  }
  Part part(const char* key) const { return {at(key), full(key), file_}; }
  bool flag(const char* key) const {
    if (!at(key).is_boolean()) corrupt(fmt::format("{} is not true or false", full(key)));
    return at(key).get<bool>();
  }
  int64_t count(const char* key) const {
    if (!at(key).is_number_unsigned() || at(key).get<uint64_t>() > INT32_MAX) {
      corrupt(fmt::format("{} is not a count below 2^31", full(key)));
    }
    return at(key).get<int64_t>();
  }
  std::string text(const char* key) const {
    if (!at(key).is_string()) corrupt(fmt::format("{} is not a string", full(key)));
    return at(key).get<std::string>();
  }

  // Throws InvalidArgument for a value that is valid but not supported by this tokenizer.
  [[noreturn]] void unsupported(std::string what) const {
    throw fsdp::InvalidArgument(
        {.what = std::move(what), .where = file_, .hint = "use BERT's WordPiece tokenizer"});
  }
  [[noreturn]] void corrupt(std::string what) const {
    throw fsdp::IoError(fsdp::ExitCode::kCorruptData, {.what = std::move(what), .where = file_});
  }
  void require_type(const std::string& type) const {
    const std::string is = text("type");
    if (is != type) {
      unsupported(fmt::format("the {} is a {}, not a {}", name_, fsdp::quoted_name(is), type));
    }
  }
  void require_flag(const char* key, bool value) const {
    if (flag(key) != value) unsupported(fmt::format("{} is {}", full(key), !value));
  }
  void require_text(const char* key, const std::string& value) const {
    const std::string is = text(key);
    if (is == value) return;
    unsupported(fmt::format("{} is {}, not {}", full(key), fsdp::quoted_name(is),
                            fsdp::quoted_name(value)));
  }
  // Refuses all other keys, because a key that is not read could change ids.
  void require_no_others(std::span<const char* const> keys) const {
    for (const auto& [key, value] : value_.items()) {
      if (std::ranges::find(keys, key, [](const char* each) { return std::string_view(each); }) ==
          keys.end()) {
        unsupported(fmt::format("the key {} is unknown", full(fsdp::quoted_name(key))));
      }
    }
  }
  std::string full(const std::string& key) const { return name_.empty() ? key : name_ + "." + key; }

 private:
  const json& value_;
  std::string name_;
  const std::string& file_;
};

TokenizerOptions read_normalizer(const Part& part) {
  constexpr std::array kKeys{"type", "clean_text", "handle_chinese_chars", "strip_accents",
                             "lowercase"};
  part.require_type("BertNormalizer");
  part.require_no_others(kKeys);
  part.require_flag("clean_text", true);
  TokenizerOptions options{.do_lower_case = part.flag("lowercase"),
                           .tokenize_chinese_chars = part.flag("handle_chinese_chars")};
  if (!part.at("strip_accents").is_null()) options.strip_accents = part.flag("strip_accents");
  return options;
}

// Returns true if vocab.txt, which has one token per line, could store the token.
bool fits_a_line(std::string_view token) {
  return !token.empty() &&
         token.find_first_of(std::string_view("\n\r\0", 3)) == std::string_view::npos;
}

// Returns the tokens ordered by id. Each id from 0 to size - 1 must occur once.
std::vector<std::string> read_tokens(const Part& model) {
  const json& vocab = model.at("vocab");
  if (!vocab.is_object()) model.corrupt("model.vocab is not an object");
  std::vector<std::string> tokens(vocab.size());
  for (const auto& [token, id] : vocab.items()) {
    const std::string name = fsdp::quoted_name(token);
    if (!fits_a_line(token)) {
      model.corrupt(
          fmt::format("token {} of model.vocab is empty, or has a line break or NUL", name));
    }
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= tokens.size()) {
      model.corrupt(fmt::format("the id of token {} is not a number from 0 to {}", name,
                                std::ssize(tokens) - 1));
    }
    std::string& place = tokens[id.get<size_t>()];
    if (!place.empty()) {
      model.corrupt(fmt::format("tokens {} and {} have the same id {}", fsdp::quoted_name(place),
                                name, id.get<int64_t>()));
    }
    place = token;
  }
  // At the start of a vocab.txt, a reader would take the mark as the file's byte order mark and not
  // as part of the token.
  if (!tokens.empty() && tokens.front().starts_with("\xef\xbb\xbf")) {
    model.corrupt("the token with id 0 begins with a byte order mark");
  }
  return tokens;
}

WordPieceVocab read_model(const Part& model, const std::string& file,
                          const SpecialTokens& special) {
  constexpr std::array kKeys{"type", "unk_token", "continuing_subword_prefix",
                             "max_input_chars_per_word", "vocab"};
  model.require_type("WordPiece");
  model.require_no_others(kKeys);
  model.require_text("unk_token", special.unk);
  model.require_text("continuing_subword_prefix", "##");
  if (model.count("max_input_chars_per_word") != kWordCharacters) {
    model.unsupported(fmt::format("model.max_input_chars_per_word is {}, not {}",
                                  model.count("max_input_chars_per_word"), kWordCharacters));
  }
  return WordPieceVocab::of_tokens(read_tokens(model), file, special);
}

// Checks that the added tokens are the special tokens and that each occurs once. Other added tokens
// are an error, because a tokenizer would also match them in the text.
void check_added_tokens(const Part& root, const std::string& file, const WordPieceVocab& vocab) {
  constexpr std::array kKeys{"id",     "content", "single_word", "lstrip",
                             "rstrip", "special", "normalized"};
  const json& list = root.at("added_tokens");
  if (!list.is_array()) root.corrupt("added_tokens is not an array");
  std::vector<int32_t> missing(vocab.special_ids().begin(), vocab.special_ids().end());
  for (const json& each : list) {
    const Part token(each, fmt::format("added token {}", &each - &list.front()), file);
    token.require_no_others(kKeys);
    const std::string content = token.text("content");
    const auto special = std::ranges::find(missing, vocab.find(content).value_or(-1));
    if (special == missing.end() || token.count("id") != *special) {
      token.unsupported(
          fmt::format("the added token {} with id {} is not one of the model's {} special tokens, "
                      "or is repeated",
                      fsdp::quoted_name(content), token.count("id"), vocab.special_ids().size()));
    }
    for (const char* key : {"single_word", "lstrip", "rstrip", "normalized"}) {
      token.require_flag(key, false);
    }
    missing.erase(special);
  }
  if (missing.empty()) return;
  root.unsupported(fmt::format("added_tokens lacks the special token {}",
                               fsdp::quoted_name(vocab.token(missing.front()))));
}

// If the file defines the layout of question and context, checks that layout.
void check_pairs(const Part& root, const std::string& file, const WordPieceVocab& vocab) {
  if (root.at("post_processor").is_null()) return;
  const Part processor = root.part("post_processor");
  const std::string cls = vocab.token(vocab.cls_id()), sep = vocab.token(vocab.sep_id());
  const auto wrong = [&] {
    processor.unsupported(
        fmt::format("post_processor does not turn a pair into {} A {} B {}", cls, sep, sep));
  };
  if (processor.text("type") == "BertProcessing") {
    if (processor.at("cls") != json::array({cls, vocab.cls_id()}) ||
        processor.at("sep") != json::array({sep, vocab.sep_id()})) {
      wrong();
    }
    return;
  }
  processor.require_type("TemplateProcessing");
  const auto token = [](const std::string& id, int type) {
    return json{{"SpecialToken", {{"id", id}, {"type_id", type}}}};
  };
  const auto text = [](const char* id, int type) {
    return json{{"Sequence", {{"id", id}, {"type_id", type}}}};
  };
  if (processor.at("pair") !=
      json::array({token(cls, 0), text("A", 0), token(sep, 0), text("B", 1), token(sep, 1)})) {
    wrong();
  }
  for (const int32_t id : {vocab.cls_id(), vocab.sep_id()}) {
    const Part named(processor.part("special_tokens").at(vocab.token(id).c_str()),
                     "post_processor.special_tokens", file);
    if (named.at("ids") != json::array({id})) wrong();
  }
}

}  // namespace

TokenizerFile parse_tokenizer_json(std::string_view text, const std::string& file,
                                   const SpecialTokens& special) {
  constexpr std::array kKeys{"version",        "truncation", "padding",
                             "added_tokens",   "normalizer", "pre_tokenizer",
                             "post_processor", "decoder",    "model"};
  const json document = fsdp::parse_json({.text = text, .file = file}, kLimits);
  const Part root(document, "", file);
  root.require_no_others(kKeys);
  root.require_text("version", "1.0");
  // The order is the tokenizer's own, so that the first error names the first wrong stage.
  const TokenizerOptions options = read_normalizer(root.part("normalizer"));
  const Part splitting = root.part("pre_tokenizer");
  splitting.require_type("BertPreTokenizer");
  splitting.require_no_others(std::array{"type"});
  WordPieceVocab vocab = read_model(root.part("model"), file, special);
  check_added_tokens(root, file, vocab);
  check_pairs(root, file, vocab);
  return {std::move(vocab), options};
}

}  // namespace bert_qa

#include "bert_qa/hf/tokenizer_folder.h"

#include <fmt/format.h>
#include <fsdp/program_text.h>
#include <fsdp/whole_file.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include "bert_qa/hf/tokenizer_json.h"
#include "fsdp/error.h"
#include "io/json_text.h"

namespace bert_qa {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kConfigName = "tokenizer_config.json";
constexpr const char* kSpecialName = "special_tokens_map.json";
constexpr const char* kFileName = "tokenizer.json";
// Wide integers are accepted: transformers writes 10^30 as model_max_length if no length is known.
constexpr fsdp::JsonLimits kTokenizerLimits{.string_bytes = fsdp::kDocumentLimits.string_bytes,
                                            .wide_integers = true};
// The classes of transformers that take their whole behaviour from tokenizer.json.
constexpr std::array<std::string_view, 2> kAnyTokenizer{"PreTrainedTokenizerFast",
                                                        "TokenizersBackend"};

// A reader of one of the two JSON files. If the file is missing, the object is empty.
class TokenizerJson {
 public:
  explicit TokenizerJson(const std::filesystem::path& path) : file_(path.string()) {
    if (!std::filesystem::exists(path)) return;
    const std::string text = fsdp::read_file(path);
    root_ = fsdp::parse_json({.text = text, .file = file_}, kTokenizerLimits);
    if (!root_.is_object()) refuse("the file is not a JSON object");
    present_ = true;
  }

  bool present() const { return present_; }
  std::optional<bool> flag(const char* key) const {
    const json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_boolean()) refuse(fmt::format("{} is not true or false", key));
    return value->get<bool>();
  }
  std::optional<std::string> text(const char* key) const {
    const json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_string()) refuse(fmt::format("{} is not a string", key));
    return value->get<std::string>();
  }
  // Returns a token. The file has it as a string, or as an object whose content is the string.
  std::optional<std::string> token(const char* key) const {
    const json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (value->is_object() && value->contains("content")) value = &value->at("content");
    if (!value->is_string() || value->get_ref<const std::string&>().empty()) {
      refuse(fmt::format("{} is not a token", key));
    }
    return value->get<std::string>();
  }
  bool has_items(const char* key) const {
    const json* value = find(key);
    return value != nullptr && !value->empty();
  }
  [[noreturn]] void unsupported(std::string what,
                                std::string hint = "use BERT's WordPiece tokenizer") const {
    throw fsdp::InvalidArgument({.what = std::move(what), .where = file_, .hint = std::move(hint)});
  }

 private:
  const json* find(const char* key) const {
    const auto at = root_.find(key);
    return at == root_.end() || at->is_null() ? nullptr : &*at;
  }
  [[noreturn]] void refuse(std::string what) const {
    throw fsdp::IoError(fsdp::ExitCode::kCorruptData, {.what = std::move(what), .where = file_});
  }

  std::string file_;
  json root_ = json::object();
  bool present_ = false;
};

// Refuses a tokenizer class that is not BERT's. `of_any` lists generic classes to accept; another
// file defines the tokenizer of such a class.
void check_class(const TokenizerJson& config, std::span<const std::string_view> of_any) {
  const auto name = config.text("tokenizer_class");
  const bool fits =
      !name || name->starts_with("Bert") || std::ranges::find(of_any, *name) != of_any.end();
  if (!fits)
    config.unsupported(
        fmt::format("the tokenizer is a {}, which is not supported", fsdp::quoted_name(*name)));
  if (!config.flag("do_basic_tokenize").value_or(true)) {
    config.unsupported("do_basic_tokenize is false, which is not supported");
  }
  if (config.has_items("never_split"))
    config.unsupported("never_split is not empty, which is not supported");
}

TokenizerOptions read_options(const TokenizerJson& config) {
  check_class(config, {});
  return {.do_lower_case = config.flag("do_lower_case").value_or(true),
          .strip_accents = config.flag("strip_accents"),
          .tokenize_chinese_chars = config.flag("tokenize_chinese_chars").value_or(true)};
}

// special_tokens_map.json has priority over tokenizer_config.json.
SpecialTokens read_special_tokens(const TokenizerJson& config, const TokenizerJson& special) {
  SpecialTokens tokens;
  const auto read = [&](const char* key, std::string& token) {
    if (const auto ours = special.token(key)) {
      token = *ours;
    } else if (const auto theirs = config.token(key)) {
      token = *theirs;
    }
  };
  read("pad_token", tokens.pad);
  read("unk_token", tokens.unk);
  read("cls_token", tokens.cls);
  read("sep_token", tokens.sep);
  read("mask_token", tokens.mask);
  return tokens;
}

// Refuses a folder whose two files give an option different values, because each program reads only
// one of the files.
void require_same(const TokenizerJson& config, const char* key, std::optional<bool> said,
                  const char* name) {
  const std::optional<bool> here = config.flag(key);
  if (!here || here == said) return;
  config.unsupported(fmt::format("{} is {}, but in {} normalizer.{} is {}", key, *here, kFileName,
                                 name, said ? fmt::format("{}", *said) : "null"),
                     "set both to the value with which the model was trained");
}

WordPieceTokenizer read_tokenizer_file(const std::filesystem::path& path,
                                       const TokenizerJson& config, const TokenizerJson& special) {
  check_class(config, kAnyTokenizer);
  const std::string text = fsdp::read_file(path);
  TokenizerFile file =
      parse_tokenizer_json(text, path.string(), read_special_tokens(config, special));
  require_same(config, "do_lower_case", file.options.do_lower_case, "lowercase");
  require_same(config, "strip_accents", file.options.strip_accents, "strip_accents");
  require_same(config, "tokenize_chinese_chars", file.options.tokenize_chinese_chars,
               "handle_chinese_chars");
  return WordPieceTokenizer(std::move(file.vocab), file.options);
}

void add_special_tokens(const WordPieceVocab& vocab, ordered_json& object) {
  object["unk_token"] = vocab.token(vocab.unk_id());
  object["sep_token"] = vocab.token(vocab.sep_id());
  object["pad_token"] = vocab.token(vocab.pad_id());
  object["cls_token"] = vocab.token(vocab.cls_id());
  object["mask_token"] = vocab.token(vocab.mask_id());
}

}  // namespace

WordPieceTokenizer read_tokenizer(const std::filesystem::path& folder,
                                  std::vector<std::string>& notes,
                                  const std::filesystem::path& vocab_file) {
  const std::filesystem::path vocab = vocab_file.empty() ? folder / "vocab.txt" : vocab_file;
  const TokenizerJson config(folder / kConfigName);
  const TokenizerJson special(folder / kSpecialName);
  const std::filesystem::path file = folder / kFileName;
  if (vocab_file.empty() && !std::filesystem::exists(vocab) && std::filesystem::exists(file)) {
    return read_tokenizer_file(file, config, special);
  }
  if (!config.present()) {
    notes.push_back(
        fmt::format("{} has no {}: using an uncased tokenizer", folder.string(), kConfigName));
  }
  if (!config.present() && !special.present()) {
    notes.push_back(
        fmt::format("{} has no {}: using the standard tokens", folder.string(), kSpecialName));
  }
  return WordPieceTokenizer(WordPieceVocab::read(vocab, read_special_tokens(config, special)),
                            read_options(config));
}

bool has_tokenizer_config(const std::filesystem::path& folder) {
  std::error_code ignored;
  return std::filesystem::exists(folder / kConfigName, ignored);
}

std::string format_vocab(const WordPieceVocab& vocab) {
  std::string text;
  for (int64_t id = 0; id < vocab.size(); ++id) {
    text += vocab.token(id);
    text += '\n';
  }
  return text;
}

std::string format_tokenizer_config(const WordPieceTokenizer& tokenizer, int64_t model_max_length) {
  const TokenizerOptions& options = tokenizer.options();
  ordered_json config;
  config["do_lower_case"] = options.do_lower_case;
  add_special_tokens(tokenizer.vocab(), config);
  config["strip_accents"] = nullptr;
  if (options.strip_accents) config["strip_accents"] = *options.strip_accents;
  config["tokenize_chinese_chars"] = options.tokenize_chinese_chars;
  config["tokenizer_class"] = "BertTokenizer";
  config["model_max_length"] = model_max_length;
  return config.dump(2) + "\n";
}

std::string format_special_tokens_map(const WordPieceTokenizer& tokenizer) {
  ordered_json map;
  add_special_tokens(tokenizer.vocab(), map);
  return map.dump(2) + "\n";
}

}  // namespace bert_qa

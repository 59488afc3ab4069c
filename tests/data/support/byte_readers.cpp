#include "data/support/byte_readers.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "data/json_text.h"
#include "data/model_config.h"
#include "data/safetensors_header.h"
#include "data/safetensors_index.h"
#include "data/squad_dataset.h"
#include "data/support/safetensors_bytes.h"
#include "data/support/text_readers.h"
#include "data/unicode_text.h"
#include "fsdp/error.h"

namespace fsdp {
namespace {

constexpr size_t kMaxLineBytes = 1500;

std::string& refusal_line() {
  static std::string line;
  return line;
}

void check_line(const Error& error) {
  std::string& line = refusal_line();
  line = error_line(error, {});
  demand(line.size() <= kMaxLineBytes, "a refusal of " + std::to_string(line.size()) + " bytes");
  demand(is_valid_utf8(line), "a refusal that is not UTF-8");
  demand(
      std::none_of(line.begin(), line.end(), [](unsigned char c) { return c < 0x20 || c == 0x7F; }),
      "a refusal of more than one plain line");
}

// Corrupt data is refused by all; what is sound but not supported by `Also`.
template <class Also = IoError, class Read>
Verdict verdict_of(Read&& read) {
  try {
    read();
    return Verdict::kAccepted;
  } catch (const IoError& error) {
    demand(error.code() == ExitCode::kCorruptData, "a refusal with another code than 65");
    check_line(error);
  } catch (const InvalidArgument& error) {
    if (!std::is_same_v<Also, InvalidArgument>) throw;
    demand(error.code() == ExitCode::kConfiguration, "an unsupported file with another code");
    check_line(error);
  }
  return Verdict::kRefused;
}

Verdict read_safetensors(std::string_view bytes) {
  return verdict_of([&] {
    const SafetensorsLayout layout =
        parse_safetensors(std::as_bytes(std::span(bytes.data(), bytes.size())), "f");
    int64_t header_bytes = 0;
    for (int i = 7; i >= 0; --i) header_bytes = header_bytes << 8 | uint8_t(bytes[i]);
    const int64_t data_begin = kSafetensorsPrefixBytes + header_bytes;
    const auto header = nlohmann::json::parse(bytes.substr(kSafetensorsPrefixBytes, header_bytes));
    demand(header.size() == layout.tensors.size() + header.count(kMetadataKey),
           "a tensor that the header does not name");
    int64_t at = data_begin;
    for (const StoredTensor& tensor : layout.tensors) {
      demand(tensor.offset_bytes == at, "a tensor that does not follow the one before it");
      const auto count = count_elements(tensor.dtype, tensor.shape);
      demand(count && count->numel == tensor.numel && count->nbytes == tensor.nbytes,
             "a size that is not the shape's");
      const nlohmann::json& said = header.at(tensor.name);
      demand(said.at("dtype") == name_of(tensor.dtype) && said.at("shape") == tensor.shape &&
                 said.at("data_offsets").at(0) == at - data_begin &&
                 said.at("data_offsets").at(1) == at - data_begin + tensor.nbytes,
             "a tensor that is not what the header says");
      at += tensor.nbytes;
    }
    demand(at == std::ssize(bytes), "tensors that do not end with the file");
  });
}

// The first two bytes are the size of the data, the rest is a header. Its size is put before it, so
// that any change of the header alone is a file.
Verdict read_header(std::string_view bytes) {
  if (bytes.size() < 2) return Verdict::kRefused;
  const int64_t data_bytes = uint8_t(bytes[0]) | uint8_t(bytes[1]) << 8;
  return read_safetensors(file_of(bytes.substr(2), data_bytes));
}

Verdict read_index(std::string_view bytes) {
  return verdict_of([&] {
    for (const auto& [tensor, file] : parse_safetensors_index(bytes, "f").file_of_tensor) {
      demand(!file.empty() && file.find('/') == file.npos && file != "." && file != "..",
             "a file name that leads elsewhere");
    }
  });
}

Verdict read_config(std::string_view bytes) {
  return verdict_of<InvalidArgument>([&] {
    const ModelConfig config = parse_model_config(bytes, "f");
    demand(config.hidden_size % config.num_attention_heads == 0, "heads that do not fit");
    demand(config.pad_token_id < config.vocab_size, "padding that is no token");
    demand(parse_model_config(format_model_config(config), "f") == config,
           "a configuration that changes when it is written");
  });
}

Verdict read_json(std::string_view bytes) {
  const Verdict verdict = verdict_of([&] {
    const nlohmann::json document = parse_json({.text = bytes, .file = "f"});
    demand(document == nlohmann::json::parse(bytes), "a document with other values");
  });
  if (verdict == Verdict::kRefused && last_refusal().find("broken JSON") != std::string::npos) {
    demand(!nlohmann::json::accept(bytes), "sound JSON called broken");
  }
  return verdict;
}

void check_answers(const QaDataset& dataset) {
  for (const QaQuestion& question : dataset.questions) {
    demand(question.context >= 0 && question.context < std::ssize(dataset.contexts),
           "a question without its context");
    for (const QaAnswer& answer : question.answers) {
      const int64_t end = answer.start + count_code_points(answer.text);
      demand(code_point_slice(dataset.context_of(question), answer.start, end) == answer.text,
             "an answer that is not at its offset");
    }
  }
}

Verdict read_squad(std::string_view bytes) {
  const auto read = [&](const SquadOptions& options) {
    return verdict_of<InvalidArgument>([&] {
      const QaDataset dataset = parse_squad(bytes, "f", options);
      if (options.check_answers) check_answers(dataset);
      check_windows(dataset);
    });
  };
  const Verdict lenient = read({.check_answers = false, .skip_bad_rows = true});
  const Verdict strict = read({});
  demand(strict == Verdict::kRefused || lenient == Verdict::kAccepted,
         "a file that only the strict reader accepts");
  return strict;
}

Verdict read_vocabulary(std::string_view bytes) {
  return verdict_of([&] { check_vocabulary(WordPieceVocab::parse(bytes, "f")); });
}

Verdict read_text_with_tokenizer(std::string_view bytes) {
  check_tokens(bytes);
  return Verdict::kAccepted;
}

// A question, an answer or a token of a few bytes is an object with several strings.
constexpr ByteReader kReaders[] = {
    {"safetensors", read_safetensors, 1},
    {"header", read_header, 1},
    {"index", read_index, 1},
    {"config", read_config, 1},
    {"json", read_json, 1},
    {"squad", read_squad, 64},
    {"vocabulary", read_vocabulary, 256},
    {"tokenizer", read_text_with_tokenizer, 64},
};

}  // namespace

void demand(bool sound, const std::string& otherwise) {
  if (!sound) throw Finding(otherwise);
}

std::span<const ByteReader> byte_readers() { return kReaders; }

const ByteReader& byte_reader(std::string_view name) {
  const auto at = std::ranges::find(kReaders, name, &ByteReader::name);
  demand(at != std::end(kReaders), fmt::format("no reader is called {}", name));
  return *at;
}

const std::string& last_refusal() { return refusal_line(); }

}  // namespace fsdp

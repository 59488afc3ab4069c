// fsdp-inspect [--summary] PATH lists the tensors of a file of weights or of a model folder and
// checks it for damage. It lists the content of a checkpoint and checks its manifest; fsdp-ckpt
// verify checks the rest. For any other file it prints the kind of the file.
//
// Exit codes: 0 sound; 64 wrong usage; 65 malformed (one line on stderr names the tensor and the
// byte); 74 cannot be read.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "fsdp/error.h"
#include "fsdp/program_text.h"
#include "io/file_kind.h"
#include "io/found_checkpoints.h"
#include "io/json_text.h"
#include "io/mapped_file.h"
#include "io/safetensors_header.h"
#include "io/safetensors_index.h"
#include "io/stored_weights.h"
#include "programs/checkpoint_listing.h"
#include "programs/command_line.h"
#include "programs/run_alone.h"
#include "programs/standard_output.h"
#include "programs/tensor_listing.h"

namespace fsdp {
namespace {

// A configuration has some KiB. The limit bounds the memory for parsing a wrong or hostile file.
constexpr int64_t kMaxConfigBytes = 1 << 20;

// Returns a value from an untrusted file as one printable line.
std::string shown(const nlohmann::json& value) {
  return printable(value.is_string() ? value.get<std::string>() : value.dump());
}

// The file's reader has checked that sizes do not overflow, so count_elements has a result.
std::vector<StoredTensor> tensors_of(const WeightsFile& file) {
  std::vector<StoredTensor> tensors;
  for (const MappedTensor& tensor : file.tensors()) {
    const auto count = count_elements(tensor.dtype, tensor.shape);
    tensors.push_back({{.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape},
                       count->numel,
                       count->nbytes});
  }
  return tensors;
}

std::string listing_of(const WeightsFile& file) {
  std::string text = fmt::format("{}\n", printable(file.path().string()));
  for (const auto& [key, value] : file.metadata()) {
    text += fmt::format("metadata {} = {}\n", printable(key), quoted_name(value));
  }
  const std::vector<StoredTensor> tensors = tensors_of(file);
  const std::string dtypes = format_dtype_counts(tensors);
  return text + format_tensors(tensors) + format_totals(totals_of(tensors)) +
         (dtypes.empty() ? "\n" : fmt::format(": {}\n", dtypes));
}

void print_notes(const StoredWeights& weights) {
  for (const std::string& note : weights.notes()) {
    print(fmt::format("note: {}\n", printable(note)));
  }
}

// Returns the model type and the usual sizes in a Hugging Face configuration. Sizes that this file
// does not have are left out.
std::string describe_config(const std::filesystem::path& path) {
  const MappedFile file(path);
  const auto refuse = [&](std::string what) {
    throw IoError(ExitCode::kCorruptData, {.what = std::move(what), .where = path.string()});
  };
  if (std::ssize(file.text()) > kMaxConfigBytes) {
    refuse(fmt::format("the configuration has {} bytes, at most {} are allowed", file.text().size(),
                       kMaxConfigBytes));
  }
  const nlohmann::json config = parse_json({.text = file.text(), .file = path.string()});
  if (!config.is_object()) refuse("the configuration is not a JSON object");
  constexpr std::pair<const char*, const char*> kSizes[] = {
      {"num_hidden_layers", "{} layers"},
      {"hidden_size", "hidden size {}"},
      {"num_attention_heads", "{} heads"},
      {"intermediate_size", "intermediate size {}"},
      {"max_position_embeddings", "{} positions"},
      {"vocab_size", "vocabulary of {}"},
      {"hidden_act", "{}"}};
  std::string text = config.contains("model_type") ? shown(config["model_type"]) : "a model";
  const char* separator = ": ";
  for (const auto& [key, phrase] : kSizes) {
    if (!config.contains(key)) continue;
    text += separator + fmt::format(fmt::runtime(phrase), shown(config[key]));
    separator = ", ";
  }
  return text + "\n";
}

// Prints all tensors and verifies every check sum.
void list_weights(const StoredWeights& weights) {
  TensorTotals all;
  const bool several = files_of(weights).size() > 1;
  for (const WeightsFile* file : files_of(weights)) {
    file->check_sums(0, 1);  // checks the whole file before it is listed
    print((several ? "\n" : "") + listing_of(*file));
    const TensorTotals totals = totals_of(tensors_of(*file));
    all.tensors += totals.tensors;
    all.numel += totals.numel;
    all.nbytes += totals.nbytes;
  }
  if (several)
    print(fmt::format("\nin {} files: {}\n", files_of(weights).size(), format_totals(all)));
}

void summarise_weights(const StoredWeights& weights) {
  std::vector<StoredTensor> all;
  int64_t bytes = 0;
  for (const WeightsFile* file : files_of(weights)) {
    const std::vector<StoredTensor> tensors = tensors_of(*file);
    all.insert(all.end(), tensors.begin(), tensors.end());
    bytes += static_cast<int64_t>(std::filesystem::file_size(file->path()));
  }
  const WeightsFile& first = *files_of(weights).front();
  const bool pickled = kind_of_file(first.path()) == FileKind::kZip;
  print(fmt::format("{}: {}, {} bytes\n", printable(weights.path().string()),
                    files_of(weights).size() > 1
                        ? fmt::format("{} {} files", files_of(weights).size(),
                                      pickled ? "torch.save" : "safetensors")
                    : pickled ? "a file of torch.save"
                              : std::string(name_of(FileKind::kSafetensors)),
                    bytes));
  for (const auto& [key, value] : first.metadata()) {
    print(fmt::format("metadata {} = {}\n", printable(key), quoted_name(value)));
  }
  print(format_totals(totals_of(all)) + "\n" + format_groups(all));
}

// Describes JSON by its content: as an index, as a configuration, or as other JSON.
std::string describe_json(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  if (name.ends_with(".index.json")) {
    const SafetensorsIndex index = parse_safetensors_index(MappedFile(path).text(), path.string());
    std::set<std::string> files;
    for (const auto& [tensor, file] : index.file_of_tensor) files.insert(file);
    return fmt::format("an index of {} tensors in {} file{}", index.file_of_tensor.size(),
                       files.size(), files.size() == 1 ? "" : "s");
  }
  if (name == "config.json") {
    std::string text = "a configuration, " + describe_config(path);
    text.pop_back();  // the line break
    return text;
  }
  return std::string(name_of(FileKind::kJson));
}

// Describes a file without readable weights. Returns an empty string if a file of this kind may
// hold weights. StoredWeights then reads the file or throws a more precise error.
std::string describe_other(FileKind kind, const std::filesystem::path& path) {
  switch (kind) {
    case FileKind::kUnknown:
    case FileKind::kEmpty:
    case FileKind::kSafetensors:
    case FileKind::kZip:
      return {};
    case FileKind::kPickle:
      return "a plain pickle, as torch.save wrote before PyTorch 1.6";
    case FileKind::kJson:
      return describe_json(path);
    default:
      return std::string(name_of(kind));
  }
}

void inspect(const std::filesystem::path& path, bool summary) {
  std::error_code ignored;
  const bool is_folder = std::filesystem::is_directory(path, ignored);
  const std::string other = is_folder ? "" : describe_other(kind_of_file(path), path);
  // A model folder may contain a manifest.json too, but it also contains a config.json.
  if (is_checkpoint_folder(path) && !std::filesystem::exists(path / "config.json", ignored)) {
    print(printable(path.string()) + "\n" + format_manifest(read_manifest(path), summary));
  } else if (!other.empty()) {
    print(fmt::format("{}: {}, {} bytes\n", printable(path.string()), other,
                      std::filesystem::file_size(path)));
  } else {
    const StoredWeights weights(path);
    const std::filesystem::path config = path / "config.json";
    if (is_folder && (!summary || std::filesystem::exists(config, ignored))) {
      print(describe_config(config));
    }
    print_notes(weights);
    if (summary) {
      summarise_weights(weights);
    } else {
      list_weights(weights);
    }
  }
  flush_output();  // a full disk shows only when the buffer is written
}

// The parsed command line.
struct Asked {
  std::filesystem::path path;
  bool summary = false;
};

// Returns the command line. For --help, prints the help and returns nothing.
std::optional<Asked> parse(int argc, char** argv) {
  CLI::App app(
      "Lists and checks the tensors of a weight file, a model folder or a checkpoint. For any "
      "other file it prints what it is.",
      "fsdp-inspect");
  std::string path;
  bool summary = false;
  app.add_option("PATH", path,
                 "safetensors, a file of torch.save, a folder with config.json and weights, or a "
                 "checkpoint's folder")
      ->required();
  app.add_flag("--summary", summary,
               "totals by type and by name prefix; check sums are not compared");
  app.footer("Exit codes: 0 sound, 64 usage, 65 malformed, 74 cannot be read.");
  if (!parse_or_help(app, argc, argv, "see fsdp-inspect --help")) return std::nullopt;
  if (path.empty()) {
    refuse_usage("the argument PATH is empty", "pass a weight file or a model folder");
  }
  return Asked{.path = path, .summary = summary};
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) {
  return fsdp::run_alone([&] {
    const std::optional<fsdp::Asked> asked = fsdp::parse(argc, argv);
    if (asked) fsdp::inspect(asked->path, asked->summary);
  });
}

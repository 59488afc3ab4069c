// fsdp-inspect PATH: what is in a safetensors file or a model folder, and whether it is sound.
//
// Exit codes: 0 sound, 64 usage, 65 malformed (one line on stderr names the tensor and the byte),
// 74 cannot be read.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <utility>

#include "fsdp/error.h"
#include "fsdp/safetensors_folder.h"
#include "io/json_text.h"
#include "io/mapped_file.h"
#include "io/printable_name.h"
#include "programs/run_alone.h"
#include "programs/tensor_listing.h"

namespace fsdp {
namespace {

constexpr int64_t kMaxConfigBytes = 1 << 20;

[[noreturn]] void cannot_write() {
  throw IoError(ExitCode::kIoError, {.what = "cannot write the listing",
                                     .where = "standard output",
                                     .cause = std::generic_category().message(errno),
                                     .hint = {}});
}

void print(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) cannot_write();
}

// A value of a file from elsewhere, on one line.
std::string shown(const nlohmann::json& value) {
  return printable_name(value.is_string() ? value.get<std::string>() : value.dump());
}

std::string listing_of(const SafetensorsFile& file) {
  std::string text = fmt::format("{}\n", printable_name(file.path().string()));
  for (const auto& [key, value] : file.metadata()) {
    text += fmt::format("metadata {} = {}\n", printable_name(key), quoted_name(value));
  }
  return text + format_tensors(file.tensors());
}

std::string totals_line(const TensorTotals& totals, const std::string& dtypes) {
  return format_totals(totals) + (dtypes.empty() ? "\n" : fmt::format(": {}\n", dtypes));
}

void list_file(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  print(listing_of(file));
  print(totals_line(totals_of(file.tensors()), format_dtype_counts(file.tensors())));
}

// The sizes that Hugging Face's configurations have in common, as far as this one has them.
std::string describe_config(const std::filesystem::path& path) {
  const MappedFile file(path);
  const auto refuse = [&](std::string what) {
    throw IoError(ExitCode::kCorruptData, {.what = std::move(what), .where = path.string()});
  };
  if (std::ssize(file.text()) > kMaxConfigBytes) {
    refuse(fmt::format("a configuration of {} bytes; at most {} are allowed", file.text().size(),
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

void list_folder(const std::filesystem::path& path) {
  const SafetensorsFolder folder(path);
  print(describe_config(path / "config.json"));
  for (const std::string& note : folder.notes()) print(fmt::format("note: {}\n", note));
  TensorTotals all;
  for (const SafetensorsFile& file : folder.files()) {
    const TensorTotals totals = totals_of(file.tensors());
    print("\n" + listing_of(file));
    print(totals_line(totals, format_dtype_counts(file.tensors())));
    all.tensors += totals.tensors;
    all.numel += totals.numel;
    all.nbytes += totals.nbytes;
  }
  if (folder.files().size() > 1) {
    print(fmt::format("\nin {} files: {}\n", folder.files().size(), format_totals(all)));
  }
}

void inspect(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    list_folder(path);
  } else {
    list_file(path);
  }
  if (std::fflush(stdout) != 0) cannot_write();
}

// Empty if only help was asked for, which is then printed.
std::filesystem::path path_from(int argc, char** argv) {
  CLI::App app(
      "Lists the tensors of a safetensors file or a model folder and checks that it is "
      "sound.",
      "fsdp-inspect");
  std::string path;
  app.add_option("PATH", path, "a safetensors file, or a folder with config.json and weights")
      ->required();
  app.footer("Exit codes: 0 sound, 64 usage, 65 malformed, 74 cannot be read.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) {
      throw InvalidArgument({.what = error.what(),
                             .where = "command line",
                             .cause = {},
                             .hint = "fsdp-inspect --help"},
                            ExitCode::kUsage);
    }
    app.exit(error);
  }
  if (path.empty() && app.count("PATH") > 0) {
    throw InvalidArgument(
        {.what = "PATH is empty", .where = "command line", .cause = {}, .hint = {}},
        ExitCode::kUsage);
  }
  return path;
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) {
  return fsdp::run_alone([&] {
    const std::filesystem::path path = fsdp::path_from(argc, argv);
    if (!path.empty()) fsdp::inspect(path);
  });
}

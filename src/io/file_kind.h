// What a file is, by its first bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace fsdp {

enum class FileKind : uint8_t {
  kUnknown,
  kEmpty,
  kSafetensors,
  kZip,  // torch.save's among them
  kPickle,
  kJson,
  kCsv,
  kText,
  kUtf16,
  kLfsPointer,
  kHtml,
  kGzip,
  kBzip2,
  kXz,
  kZstd,
  kTar,
  kElf,
  kPdf,
  kImage,
  kHdf5,
  kNumpy,
  kParquet,
  kArrow,
  kGguf,
};

// As many bytes as file_kind looks at.
inline constexpr size_t kKindBytes = 4096;

// Requires: `begin` has the first kKindBytes bytes of the file, or all that it has.
FileKind file_kind(std::string_view begin);
// kUnknown for what is no regular file or cannot be read.
FileKind kind_of_file(const std::filesystem::path& path);

// "a gzip archive"; "a file of unknown kind".
std::string_view name_of(FileKind kind);

// The hint of errors about a damaged file.
inline constexpr const char* kFetchFileAgain = "fetch the file again: it is broken";

// Refuses, by its name and with the way out, a file that is of a kind that its reader cannot mean.
// `wanted` is "JSON", "a vocabulary", …. Kinds that may be a damaged file of the wanted kind pass:
// the reader says more of those.
// Errors: IoError kCorruptData.
void refuse_other_kind(std::string_view bytes, const std::string& file, std::string_view wanted);

}  // namespace fsdp

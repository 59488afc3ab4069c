// FileKind: the kind of a file, by its first bytes.
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

// The number of bytes that file_kind reads.
inline constexpr size_t kKindBytes = 4096;

// Returns the kind of a file. Requires: `begin` has the first kKindBytes bytes, or all there are.
FileKind file_kind(std::string_view begin);
// Returns kUnknown for a path that is no regular file or cannot be read.
FileKind kind_of_file(const std::filesystem::path& path);

// Returns "a gzip archive", "a file of unknown kind", ….
std::string_view name_of(FileKind kind);

// The hint of errors about a damaged file.
inline constexpr const char* kFetchFileAgain = "fetch the file again: it is broken";

// Throws for a file of a kind that its reader cannot mean, with the kind's name and a remedy.
// `wanted` is "JSON", "a vocabulary", …. Kinds that may be a damaged file of the wanted kind pass:
// the reader reports more about those.
// Errors: IoError kCorruptData.
void refuse_other_kind(std::string_view bytes, const std::string& file, std::string_view wanted);

}  // namespace fsdp

// FileKind: the kind of a file, determined by its first bytes.
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
  kZip,  // including archives of torch.save
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

// Returns the kind of a file. Requires: `begin` holds the first kKindBytes bytes, or the whole file
// if it is shorter.
FileKind file_kind(std::string_view begin);
// Returns the kind of the file, or kUnknown if the path is not a regular file or cannot be read.
FileKind kind_of_file(const std::filesystem::path& path);

// Returns "a gzip archive", "a file of unknown kind", ….
std::string_view name_of(FileKind kind);

// The hint of errors about a damaged file.
inline constexpr const char* kFetchFileAgain = "fetch the file again: it is broken";

// Throws if the bytes begin a file of another kind than the wanted one. The error names the kind
// and a remedy. `wanted` names the wanted kind, for example "JSON" or "a vocabulary". If the bytes
// may begin a damaged file of the wanted kind, the call does not throw, because the reader of that
// kind gives a better error.
// Errors: IoError kCorruptData.
void refuse_other_kind(std::string_view bytes, const std::string& file, std::string_view wanted);

}  // namespace fsdp

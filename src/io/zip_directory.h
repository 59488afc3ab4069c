// Reads the records of a zip archive and their positions in the file. It reads the archives that
// torch.save writes for tensors: one disk, and records that are neither compressed nor encrypted.
// (The code of a module is compressed, but it is not read.)
//
// It replaces LibTorch's reader (miniz), which takes the first of two records with the same name,
// ignores case in names, and ignores the flags. This reader is tested and fuzzed without LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace fsdp {

struct ZipRecord {
  std::span<const std::byte> bytes;
  uint32_t check_sum = 0;
  std::string unread;  // why the record cannot be read ("is compressed"); `bytes` is then empty
};

struct ZipDirectory {
  std::string folder;  // folder of the first record: "archive"; torch.save puts all records there
  std::map<std::string, ZipRecord, std::less<>> records;  // by full name

  // Returns the record of this name in `folder`, or null.
  const ZipRecord* find(std::string_view name) const;
};

// Parses the directory.
// Effects: uses memory in proportion to the directory's bytes; does not read records.
// Errors: IoError kCorruptData; it names the record if two records have the same name, or if a
//   record is outside the file or differs from the directory.
ZipDirectory parse_zip(std::span<const std::byte> bytes, const std::string& file);

// Throws if the record cannot be read.
// Errors: IoError kCorruptData, which names the record and the reason.
void require_readable(const ZipRecord& record, std::string_view name, const std::string& file);

// Reads the whole record and compares its check sum. After each piece of at most 8 MiB is read,
// calls `read` with that piece.
// Errors: as require_readable; IoError kCorruptData, which names the record, if the check sum
//   differs.
void check_record(const ZipRecord& record, std::string_view name, const std::string& file,
                  const std::function<void(std::span<const std::byte>)>& read = {});

}  // namespace fsdp

// The records of a zip archive and their places in the file. It reads what torch.save writes for
// tensors: one disk, records that are neither compressed nor encrypted. (The code of a module,
// which is not read, is compressed.)
//
// It replaces LibTorch's reader (miniz), which takes the first of two records of one name, compares
// names without case, and ignores the flags. This one is tested, and fuzzed, without LibTorch.
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
  std::string unread;  // why it cannot be read, "is compressed"; `bytes` is then empty
};

struct ZipDirectory {
  std::string folder;  // of the first record: "archive", into which torch.save puts all
  std::map<std::string, ZipRecord, std::less<>> records;  // by whole name

  // Returns the record of this name in `folder`; null if there is none.
  const ZipRecord* find(std::string_view name) const;
};

// Parses the directory.
// Effects: memory in proportion to the directory's bytes; records are not read.
// Errors: IoError kCorruptData: with the name for two records of one name, and for a record outside
//   the file or differs from the directory.
ZipDirectory parse_zip(std::span<const std::byte> bytes, const std::string& file);

// Throws if the record cannot be read. Errors: IoError kCorruptData with the name and the reason.
void require_readable(const ZipRecord& record, std::string_view name, const std::string& file);

// Reads the whole record and compares its check sum; calls `read` with each piece of at most 8 MiB
// after it was read.
// Errors: as require_readable; IoError kCorruptData with the name if the check sum differs.
void check_record(const ZipRecord& record, std::string_view name, const std::string& file,
                  const std::function<void(std::span<const std::byte>)>& read = {});

}  // namespace fsdp

#include "io/file_kind.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>

#include "fsdp/error.h"
#include "io/safetensors_header.h"

namespace fsdp {
namespace {

using namespace std::string_view_literals;

struct KindRow {
  FileKind kind;
  std::string_view name;
  std::string_view hint;  // how to get a readable file; empty if no reader refuses this kind
};
constexpr std::array kKinds{
    KindRow{FileKind::kUnknown, "a file of unknown kind", ""},
    KindRow{FileKind::kEmpty, "an empty file", ""},
    KindRow{FileKind::kSafetensors, "a safetensors file", "pass it where weights are expected"},
    KindRow{FileKind::kZip, "a zip archive", "unpack it, or pass it where weights are expected"},
    KindRow{FileKind::kPickle, "a plain pickle", "read it in Python and save its content"},
    KindRow{FileKind::kJson, "JSON", ""},
    KindRow{FileKind::kCsv, "a CSV table", "convert it to JSON, one object a row"},
    KindRow{FileKind::kText, "text", ""},
    KindRow{FileKind::kUtf16, "text in UTF-16", "convert it: iconv -f UTF-16 -t UTF-8"},
    KindRow{FileKind::kLfsPointer, "a Git LFS pointer, not the file itself",
            "fetch the file: git lfs pull"},
    KindRow{FileKind::kHtml, "an HTML page", "fetch the file itself, not the page that shows it"},
    KindRow{FileKind::kGzip, "a gzip archive", "unpack it: gunzip"},
    KindRow{FileKind::kBzip2, "a bzip2 archive", "unpack it: bunzip2"},
    KindRow{FileKind::kXz, "an xz archive", "unpack it: unxz"},
    KindRow{FileKind::kZstd, "a zstd archive", "unpack it: unzstd"},
    KindRow{FileKind::kTar, "a tar archive", "unpack it: tar -xf"},
    KindRow{FileKind::kElf, "a program (ELF)", "name another file"},
    KindRow{FileKind::kPdf, "a PDF document", "name another file"},
    KindRow{FileKind::kImage, "an image", "name another file"},
    KindRow{FileKind::kHdf5, "an HDF5 file", "convert it in Python"},
    KindRow{FileKind::kNumpy, "a NumPy array", "convert it in Python"},
    KindRow{FileKind::kParquet, "a Parquet table", "convert it in Python"},
    KindRow{FileKind::kArrow, "an Arrow table", "convert it in Python"},
    KindRow{FileKind::kGguf, "a GGUF file", "use the model's safetensors"},
};

// Checks that the table has the order of the enum, which kind_row() uses as its index.
constexpr bool kinds_follow_the_enum() {
  for (size_t i = 0; i < kKinds.size(); ++i) {
    if (static_cast<size_t>(kKinds[i].kind) != i) return false;
  }
  return kKinds.size() == static_cast<size_t>(FileKind::kGguf) + 1;
}
static_assert(kinds_follow_the_enum());

struct Magic {
  FileKind kind;
  std::string_view bytes;
  size_t at = 0;
};
// The first bytes of each kind, in the order in which they are compared.
constexpr std::array kMagics{
    Magic{FileKind::kZip, "PK\x03\x04"sv},
    Magic{FileKind::kZip, "PK\x05\x06"sv},
    Magic{FileKind::kGzip, "\x1f\x8b"sv},
    Magic{FileKind::kBzip2, "BZh"sv},
    Magic{FileKind::kXz,
          "\xfd"
          "7zXZ\0"sv},
    Magic{FileKind::kZstd, "\x28\xb5\x2f\xfd"sv},
    Magic{FileKind::kTar, "ustar"sv, 257},
    Magic{FileKind::kElf,
          "\x7f"
          "ELF"sv},
    Magic{FileKind::kPdf, "%PDF-"sv},
    Magic{FileKind::kImage, "\x89PNG"sv},
    Magic{FileKind::kImage, "\xff\xd8\xff"sv},
    Magic{FileKind::kHdf5, "\x89HDF\r\n"sv},
    Magic{FileKind::kNumpy, "\x93NUMPY"sv},
    Magic{FileKind::kParquet, "PAR1"sv},
    Magic{FileKind::kArrow, "ARROW1"sv},
    Magic{FileKind::kGguf, "GGUF"sv},
    Magic{FileKind::kUtf16, "\xff\xfe"sv},
    Magic{FileKind::kUtf16, "\xfe\xff"sv},
    Magic{FileKind::kLfsPointer, "version https://git-lfs"sv},
    Magic{FileKind::kHtml, "<!DOCTYPE html"sv},
    Magic{FileKind::kHtml, "<!doctype html"sv},
    Magic{FileKind::kHtml, "<html"sv},
};

// A safetensors file begins with the size of its header as a number. The bytes of the number can be
// those with which another kind begins: the bytes of 640 also begin a pickle, and other numbers
// begin a zip archive. So this kind is checked before all others.
bool is_safetensors(std::string_view begin) {
  if (begin.size() <= kSafetensorsPrefixBytes || begin[kSafetensorsPrefixBytes] != '{') {
    return false;
  }
  uint64_t size = 0;
  for (size_t i = kSafetensorsPrefixBytes; i-- > 0;) {
    size = size << 8 | static_cast<unsigned char>(begin[i]);
  }
  return size <= static_cast<uint64_t>(kMaxHeaderBytes);
}

// Returns true for protocols 2 to 5, whose pickles begin with the protocol number.
bool is_pickle(std::string_view begin) {
  return begin.size() > 2 && begin[0] == '\x80' && begin[1] >= 2 && begin[1] <= 5;
}

// Recognises UTF-16 without a byte order mark: in ASCII text every second byte is NUL.
bool is_utf16(std::string_view begin) {
  constexpr size_t kLooked = 64;
  const std::string_view looked = begin.substr(0, std::min(begin.size() / 2 * 2, kLooked));
  std::array<size_t, 2> nuls{};
  for (size_t i = 0; i < looked.size(); ++i) nuls[i % 2] += looked[i] == '\0' ? 1 : 0;
  const size_t half = looked.size() / 2;
  return half >= 4 && ((nuls[0] == half && nuls[1] == 0) || (nuls[1] == half && nuls[0] == 0));
}

// Returns true if line ends and tabs are the only control characters. UTF-8 bytes count as text.
bool is_text(std::string_view begin) {
  return std::ranges::none_of(begin, [](unsigned char c) {
    return c == 0x7f || (c < 0x20 && c != '\n' && c != '\r' && c != '\t');
  });
}

// The number of fields in a line. If the line opens a quote and does not close it, separators after
// the quote do not count.
struct Fields {
  size_t count = 1;
  bool quote_is_open = false;
};
Fields fields_of(std::string_view line, char separator) {
  Fields fields;
  for (const char c : line) {
    if (c == '"') fields.quote_is_open = !fields.quote_is_open;
    if (c == separator && !fields.quote_is_open) ++fields.count;
  }
  return fields;
}

// Returns true if the first two lines have the same number of fields. One comma is not enough,
// because any text may have one.
bool is_csv(std::string_view text) {
  const size_t end = text.find('\n');
  if (end == text.npos) return false;
  const std::string_view rest = text.substr(end + 1);
  return std::ranges::any_of(std::array{',', '\t', ';'}, [&](char separator) {
    const Fields first = fields_of(text.substr(0, end), separator);
    const Fields second = fields_of(rest.substr(0, rest.find('\n')), separator);
    // A quoted field may continue in the next line. The second line then has fewer fields.
    return first.count > 1 && !first.quote_is_open &&
           (second.quote_is_open ? second.count <= first.count : second.count == first.count);
  });
}

FileKind kind_of_text(std::string_view begin) {
  const size_t first = begin.find_first_not_of(" \t\r\n");
  if (first != begin.npos && (begin[first] == '{' || begin[first] == '[')) return FileKind::kJson;
  return is_csv(begin) ? FileKind::kCsv : FileKind::kText;
}

const KindRow& kind_row(FileKind kind) { return kKinds.at(static_cast<size_t>(kind)); }

}  // namespace

FileKind file_kind(std::string_view begin) {
  begin = begin.substr(0, kKindBytes);
  if (begin.empty()) return FileKind::kEmpty;
  if (is_safetensors(begin)) return FileKind::kSafetensors;
  for (const Magic& magic : kMagics) {
    if (begin.size() < magic.at || !begin.substr(magic.at).starts_with(magic.bytes)) continue;
    if (magic.at == 0 || !is_text(begin)) return magic.kind;  // a text may contain these bytes
  }
  if (is_pickle(begin)) return FileKind::kPickle;
  if (is_utf16(begin)) return FileKind::kUtf16;
  return is_text(begin) ? kind_of_text(begin) : FileKind::kUnknown;
}

FileKind kind_of_file(const std::filesystem::path& path) {
  std::error_code ignored;
  // Only regular files are opened, because reading a pipe would consume its data or block.
  if (!std::filesystem::is_regular_file(path, ignored)) return FileKind::kUnknown;
  std::string begin(kKindBytes, '\0');
  std::ifstream file(path, std::ios::binary);
  if (!file) return FileKind::kUnknown;
  file.read(begin.data(), std::ssize(begin));
  begin.resize(static_cast<size_t>(file.gcount()));
  return file_kind(begin);
}

std::string_view name_of(FileKind kind) { return kind_row(kind).name; }

void refuse_other_kind(std::string_view bytes, const std::string& file, std::string_view wanted) {
  const KindRow& row = kind_row(file_kind(bytes));
  // If the kind has no hint, the bytes may be a damaged file of the wanted kind. In this case the
  // reader of the wanted kind gives a better error.
  if (row.hint.empty()) return;
  throw IoError(ExitCode::kCorruptData,
                {.what = fmt::format("the file is {}, expected {}", row.name, wanted),
                 .where = file,
                 .hint = std::string(row.hint)});
}

}  // namespace fsdp

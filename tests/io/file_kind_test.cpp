#include "io/file_kind.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "fsdp/error.h"
#include "io/json_text.h"
#include "support/pickle_bytes.h"
#include "support/safetensors_bytes.h"
#include "support/scratch_folder.h"
#include "support/zip_bytes.h"

namespace fsdp {
namespace {

using namespace std::string_literals;

std::string utf16(const std::string& text) {
  std::string wide;
  for (const char c : text) wide += {c, '\0'};
  return wide;
}

TEST_CASE("a file is known by its first bytes") {
  const ScratchFolder folder;
  const std::pair<std::string, FileKind> cases[] = {
      {"", FileKind::kEmpty},
      {file_of("{}"), FileKind::kSafetensors},
      {zip_of({{"a/b", "c"}}), FileKind::kZip},
      {pickled_state_dict({}), FileKind::kPickle},
      {"\x80\x05\x95"s, FileKind::kPickle},
      {" {\"a\": 1}", FileKind::kJson},
      {"[1, 2]", FileKind::kJson},
      {"id,question\n1,why?\n", FileKind::kCsv},
      {"id\tquestion\n1\t\"a\nb\"\n", FileKind::kCsv},
      {"a text, with a comma\nand a line without one\n", FileKind::kText},
      {"[UNK]\n", FileKind::kJson},
      {"\xff\xfe" + utf16("{}"), FileKind::kUtf16},
      {utf16("{\"a\": 1}"), FileKind::kUtf16},
      {"\0{\0}\0 \0 "s, FileKind::kUtf16},
      {"\x1f\x8b\x08\x00"s, FileKind::kGzip},
      {"\x7f"s + "ELF\x02", FileKind::kElf},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", FileKind::kLfsPointer},
      {"<!DOCTYPE html>\n<html>", FileKind::kHtml},
      {"\x93NUMPY\x01"s, FileKind::kNumpy},
      {std::string(257, '\0') + "ustar", FileKind::kTar},
      {std::string(257, 'x') + "ustar", FileKind::kText},
      {"\x01\x02\x03"s, FileKind::kUnknown},
  };
  for (const auto& [bytes, kind] : cases) {
    CAPTURE(bytes);
    CHECK(name_of(file_kind(bytes)) == name_of(kind));
    CHECK(name_of(kind_of_file(folder.write("f", bytes))) == name_of(kind));
  }
  CHECK(kind_of_file(folder.path()) == FileKind::kUnknown);
  CHECK(kind_of_file(folder / "missing") == FileKind::kUnknown);
}

TEST_CASE("a safetensors file is one whatever the size of its header") {
  // These header sizes begin like other formats. 640 has the first two bytes of a pickle,
  // 67,324,752 the first four of a zip archive, and 35,615 the first two of gzip.
  for (const int64_t size : {640L, 640L + 65'536, 640L + 10 * 65'536, 67'324'752L, 35'615L}) {
    const std::string begin = little_endian(size) + "{" + std::string(100, ' ');
    CAPTURE(size);
    CHECK(file_kind(begin) == FileKind::kSafetensors);
  }
  CHECK(file_kind(little_endian(100'000'001) + "{") != FileKind::kSafetensors);
}

TEST_CASE("a reader refuses another kind of file by its name, with the way out") {
  const auto refusal = [](const std::string& bytes) {
    try {
      refuse_other_kind(bytes, "f", "JSON");
    } catch (const IoError& error) {
      CHECK(error.code() == ExitCode::kCorruptData);
      CHECK(error.text().where == "f");
      return error.text().what + "; " + error.text().hint;
    }
    return "accepted"s;
  };
  CHECK(refusal("\x1f\x8b\x08") == "the file is a gzip archive, expected JSON; unpack it: gunzip");
  CHECK(refusal("\xff\xfe") ==
        "the file is text in UTF-16, expected JSON; convert it: iconv -f UTF-16 -t UTF-8");
  CHECK(refusal("a,b\n1,2\n") ==
        "the file is a CSV table, expected JSON; convert it to JSON, one object a row");
  for (const std::string& bytes : {"{}"s, "text"s, ""s, "\x01\x02"s}) {
    CHECK(refusal(bytes) == "accepted");
  }
  CHECK_THROWS_WITH_AS(parse_json({.text = "a,b\n1,2\n", .file = "f"}),
                       doctest::Contains("the file is a CSV table"), IoError);
}

}  // namespace
}  // namespace fsdp

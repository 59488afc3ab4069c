#include "io/safetensors_header.h"

#include <doctest/doctest.h>

#include "fsdp/error.h"
#include "support/safetensors_bytes.h"

namespace fsdp {
namespace {

using namespace std::string_literals;

std::string header_refusal(const std::string& file) {
  // The copy has exactly this size, so that a sanitizer reports a read beyond its end.
  const std::vector<char> exact(file.begin(), file.end());
  try {
    parse_safetensors(std::as_bytes(std::span(exact)), "m.safetensors");
  } catch (const IoError& error) {
    CHECK(error.code() == ExitCode::kCorruptData);
    return error.what();
  }
  return "accepted";
}

// Returns a header with one tensor named t. The three values are inserted as text.
std::string tensor(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"t":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}}";
}
std::string f32(const std::string& shape, const std::string& offsets) {
  return tensor(R"("F32")", shape, offsets);
}
std::string two(const std::string& first, const std::string& second) {
  return R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + first +
         R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + second + "}}";
}

const std::string kGood = f32("[2]", "[0,8]");

struct Case {
  std::string name;
  std::string file;
  std::string expected;
};

TEST_CASE("A file of the wrong size is refused with the byte where it ends") {
  const Case cases[] = {
      {"empty", "", "a file of 0 bytes cannot be a safetensors file (m.safetensors, byte 0)"},
      {"one byte", "\x01", "a file of 1 bytes"},
      {"seven bytes", std::string(7, '\0'), "(m.safetensors, byte 7)"},
      {"only the size", little_endian(2),
       "the file ends within its header: 8 bytes, but the header claims 2 (m.safetensors, byte 8); "
       "hint: fetch the file again: it may be truncated"},
      {"header cut by one", file_of(kGood).substr(0, 8 + kGood.size() - 1),
       "ends within its header"},
      {"header of zero bytes", little_endian(0), "does not start with '{' (m.safetensors, byte 8)"},
      {"a zero file", std::string(64, '\0'), "does not start with '{'"},
      {"claim one above the limit", little_endian(100'000'001) + "{}",
       "the header claims 100000001 bytes; at most 100000000 are allowed"},
      {"claim at the limit", little_endian(100'000'000) + "{}", "ends within its header"},
      {"claim of 2^63", little_endian(uint64_t{1} << 63) + "{}", "claims 9223372036854775808"},
      {"claim of 2^64 - 1", little_endian(~uint64_t{0}) + "{}", "claims 18446744073709551615"},
      {"claim that wraps with the prefix", little_endian(~uint64_t{0} - 7) + "{}", "claims"},
      {"a text file", "hello, this is no safetensors file", "the header claims"},
      {"data cut by one", file_of(kGood, 7),
       "the file ends within tensor 't': 7 bytes of data, 8 needed"},
      {"data missing", file_of(kGood), "the file ends within tensor 't': 0 bytes"},
      {"a byte too many", file_of(kGood, 9), "1 bytes follow the last tensor (m.safetensors, byte"},
      {"data without tensors", file_of("{}", 4), "4 bytes follow the last tensor"},
  };
  for (const auto& [name, file, expected] : cases) {
    const std::string said = header_refusal(file);
    CAPTURE(name);
    CAPTURE(said);
    CHECK(said.find(expected) != said.npos);
  }
}

TEST_CASE("A header that is not one strict JSON object and spaces is refused with its byte") {
  const Case cases[] = {
      {"array", file_of("[]"), "does not start with '{'"},
      {"leading space", file_of(" {}"), "does not start with '{' (m.safetensors, byte 8)"},
      {"byte order mark", file_of("\xef\xbb\xbf{}"), "does not start with '{'"},
      {"NUL padding", file_of("{}\0\0"s), "does not end with '}' and padding spaces"},
      {"NUL, then spaces", file_of("{}\0  "s), "does not end with '}' and padding spaces"},
      {"line end as padding", file_of("{}\n"), "does not end with '}' and padding spaces"},
      {"tab as padding", file_of("{} \t"), "does not end with '}' and padding spaces"},
      {"text after", file_of("{} x"), "does not end with '}' and padding spaces"},
      {"second object", file_of("{}{}"), "expected end of input (m.safetensors, byte 10)"},
      {"second object after spaces", file_of("{}  {}"), "expected end of input"},
      {"NUL in a name", file_of("{\"a\0\":1}"s), "a NUL character"},
      {"NUL between tokens", file_of("{\0}"s),
       "the JSON text has a NUL character (m.safetensors, byte 9)"},
      {"unclosed", file_of("{"), "does not end with '}'"},
      {"unclosed inner object", file_of("{\"a\":{}"),
       "tensor 'a': dtype is missing (m.safetensors, byte 14)"},
      {"trailing comma", file_of(kGood.substr(0, kGood.size() - 1) + ",}", 8), "broken JSON"},
      {"comment", file_of("{/*x*/}"), "broken JSON"},
      {"single quotes", file_of("{'t':1}"), "broken JSON"},
      {"invalid UTF-8 in a name", file_of("{\"\xff\":1}"), "ill-formed UTF-8"},
      {"overlong UTF-8", file_of("{\"\xc0\x80\":1}"), "ill-formed UTF-8"},
      {"a surrogate in UTF-8", file_of("{\"\xed\xa0\x80\":1}"), "ill-formed UTF-8"},
      {"half a surrogate pair", file_of("{\"\\ud800\":1}"), "U+DC00"},
      {"nested objects", file_of("{\"a\":{\"b\":{\"c\":{}}}}"), "tensor 'a': unknown key 'b'"},
      {"deep arrays", file_of("{\"a\":" + std::string(100'000, '[') + "}"),
       "tensor 'a': an array instead"},
      {"deep arrays in a shape", file_of(f32(std::string(100'000, '['), "[0,8]")),
       "tensor 't': an array instead of an unsigned integer as dimension"},
      {"deep objects", file_of([] {
         std::string deep = "{";
         for (int i = 0; i < 50'000; ++i) deep += "\"a\":{";
         return deep + "}";
       }()),
       "unknown key 'a'"},
      {"a name of 5 MB", file_of("{\"" + std::string(5'000'000, 'n') + "\":1}"),
       "a string has more than 2097152 bytes"},
  };
  for (const auto& [name, file, expected] : cases) {
    const std::string said = header_refusal(file);
    CAPTURE(name);
    CAPTURE(said);
    CHECK(said.find(expected) != said.npos);
    CHECK(said.size() < 500);
  }
}

TEST_CASE("A tensor that is not exactly dtype, shape and data_offsets is refused by name") {
  const Case cases[] = {
      {"number for a tensor", file_of(R"({"t":1})"),
       "tensor 't': the number 1 instead of an object"},
      {"null for a tensor", file_of(R"({"t":null})"), "tensor 't': null instead of an object"},
      {"string for a tensor", file_of(R"({"t":"x"})"), "tensor 't': a string instead of an object"},
      {"array for a tensor", file_of(R"({"t":[]})"), "tensor 't': an array instead of an object"},
      {"empty tensor", file_of(R"({"t":{}})"), "tensor 't': dtype is missing"},
      {"no shape", file_of(R"({"t":{"dtype":"F32","data_offsets":[0,4]}})", 4), "shape is missing"},
      {"no offsets", file_of(R"({"t":{"dtype":"F32","shape":[1]}})", 4), "data_offsets is missing"},
      {"fourth key", file_of(R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1}})", 1),
       "tensor 't': unknown key 'x'"},
      {"dtype unknown", file_of(tensor(R"("F31")", "[1]", "[0,4]"), 4),
       "tensor 't': unknown dtype 'F31'"},
      {"dtype in lower case", file_of(tensor(R"("f32")", "[1]", "[0,4]"), 4),
       "unknown dtype 'f32'"},
      {"dtype empty", file_of(tensor(R"("")", "[1]", "[0,4]"), 4), "unknown dtype ''"},
      {"dtype a number", file_of(tensor("32", "[1]", "[0,4]"), 4),
       "dtype is the number 32, not a string"},
      {"dtype null", file_of(tensor("null", "[1]", "[0,4]"), 4), "dtype is null, not a string"},
      {"dtype an array", file_of(tensor("[]", "[1]", "[0,4]"), 4), "an array"},
      {"shape a number", file_of(f32("2", "[0,8]"), 8), "shape is the number 2, not an array"},
      {"shape null", file_of(f32("null", "[0,4]"), 4), "shape is null"},
      {"shape a string", file_of(f32("\"2\"", "[0,8]"), 8), "shape is a string"},
      {"shape an object", file_of(f32("{}", "[0,8]"), 8), "shape is an object"},
      {"dimension negative", file_of(f32("[-2]", "[0,8]"), 8),
       "tensor 't': the number -2 instead of an unsigned integer as dimension"},
      {"two negatives", file_of(f32("[-1,-2]", "[0,8]"), 8), "the number -1 instead"},
      {"dimension -0", file_of(f32("[-0]", "[0,0]")), "instead of an unsigned integer"},
      {"dimension a float", file_of(f32("[2.0]", "[0,8]"), 8), "the number 2"},
      {"dimension with exponent", file_of(f32("[2e0]", "[0,8]"), 8), "the number 2"},
      {"dimension a string", file_of(f32("[\"2\"]", "[0,8]"), 8), "a string instead"},
      {"dimension a boolean", file_of(f32("[true]", "[0,4]"), 4), "a boolean instead"},
      {"dimension null", file_of(f32("[null]", "[0,4]"), 4), "null instead"},
      {"dimension an array", file_of(f32("[[2]]", "[0,8]"), 8), "an array instead"},
      {"dimension 2^63", file_of(f32("[9223372036854775808]", "[0,8]"), 8),
       "tensor 't': the dimension 9223372036854775808 is too large"},
      {"dimension 2^64", file_of(f32("[18446744073709551616]", "[0,8]"), 8),
       "the integer 18446744073709551616 does not fit 64 bits"},
      {"leading zero", file_of(f32("[02]", "[0,8]"), 8), "broken JSON"},
      {"product overflows", file_of(f32("[4294967296,4294967296]", "[0,0]")),
       "has no size in bytes"},
      {"product overflows to the size", file_of(f32("[9223372036854775807,2]", "[0,8]"), 8),
       "has no size in bytes"},
      {"bytes overflow", file_of(f32("[4611686018427387904]", "[0,0]")), "has no size in bytes"},
      {"overflow before a zero", file_of(f32("[4294967296,4294967296,0]", "[0,0]")),
       "has no size in bytes"},
      {"65 dimensions",
       file_of(f32(
                   "[1" +
                       [] {
                         std::string ones;
                         for (int i = 0; i < 64; ++i) ones += ",1";
                         return ones;
                       }() +
                       "]",
                   "[0,4]"),
               4),
       "more than 64 dimensions"},
      {"half a byte", file_of(tensor(R"("F4")", "[3]", "[0,2]"), 2),
       "F4 of shape [3] has no size in bytes"},
      {"one offset", file_of(f32("[2]", "[8]"), 8), "data_offsets has 1 values instead of 2"},
      {"no offset", file_of(f32("[2]", "[]"), 8), "data_offsets has 0 values instead of 2"},
      {"three offsets", file_of(f32("[2]", "[0,8,16]"), 8), "data_offsets has more than 2 values"},
      {"offset negative", file_of(f32("[2]", "[-8,0]"), 8),
       "the number -8 instead of an unsigned integer as offset"},
      {"offset a float", file_of(f32("[2]", "[0,8.0]"), 8), "instead of an unsigned integer"},
      {"offset a string", file_of(f32("[2]", "[0,\"8\"]"), 8), "a string instead"},
      {"offset 2^64", file_of(f32("[2]", "[0,18446744073709551616]"), 8), "does not fit 64 bits"},
      {"offset 2^64 - 1", file_of(f32("[2]", "[18446744073709551615,7]"), 8), "is too large"},
      {"offsets an object", file_of(f32("[2]", "{}"), 8), "data_offsets is an object"},
      {"offsets reversed", file_of(f32("[2]", "[8,0]"), 8),
       "data_offsets end at 0 before they begin at 8"},
      {"size one short", file_of(f32("[2]", "[0,7]"), 7),
       "tensor 't': F32 of shape [2] needs 8 bytes, but data_offsets has 7"},
      {"size one long", file_of(f32("[2]", "[0,9]"), 9), "data_offsets has 9"},
      {"half-precision size for F32", file_of(f32("[2]", "[0,4]"), 4),
       "needs 8 bytes, but data_offsets has 4"},
      {"0-d with no byte", file_of(f32("[]", "[0,0]")), "F32 of shape [] needs 4 bytes"},
      {"zero-size with bytes", file_of(f32("[0]", "[0,4]"), 4), "needs 0 bytes"},
  };
  for (const auto& [name, file, expected] : cases) {
    const std::string said = header_refusal(file);
    CAPTURE(name);
    CAPTURE(said);
    CHECK(said.find(expected) != said.npos);
  }
}

TEST_CASE("Keys given twice are refused at every level") {
  const std::string t = R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  const Case cases[] = {
      {"tensor twice", file_of("{\"t\":" + t + ",\"t\":" + t + "}", 1),
       "the key 't' appears twice"},
      {"same name by escape", file_of("{\"t\":" + t + ",\"\\u0074\":" + t + "}", 1),
       "the key 't' appears twice"},
      {"dtype twice",
       file_of(R"({"t":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1),
       "the key 'dtype' appears twice"},
      {"metadata twice", file_of(R"({"__metadata__":{},"__metadata__":{}})"),
       "the key '__metadata__' appears twice"},
      {"metadata key twice", file_of(R"({"__metadata__":{"a":"1","a":"1"}})"),
       "the key 'a' appears twice"},
  };
  for (const auto& [name, file, expected] : cases) {
    const std::string said = header_refusal(file);
    CAPTURE(name);
    CAPTURE(said);
    CHECK(said.find(expected) != said.npos);
  }
}

TEST_CASE("Metadata that is not text to text is refused") {
  const Case cases[] = {
      {"null", file_of(R"({"__metadata__":null})"), "the metadata is null, not an object"},
      {"string", file_of(R"({"__metadata__":"x"})"), "the metadata is a string, not an object"},
      {"array", file_of(R"({"__metadata__":[]})"), "the metadata is an array"},
      {"number in it", file_of(R"({"__metadata__":{"a":1}})"),
       "metadata 'a' is the number 1 instead of a string"},
      {"null in it", file_of(R"({"__metadata__":{"a":null}})"), "metadata 'a' is null"},
      {"object in it", file_of(R"({"__metadata__":{"a":{}}})"), "metadata 'a' is an object"},
      {"array in it", file_of(R"({"__metadata__":{"a":[]}})"), "metadata 'a' is an array"},
  };
  for (const auto& [name, file, expected] : cases) {
    const std::string said = header_refusal(file);
    CAPTURE(name);
    CAPTURE(said);
    CHECK(said.find(expected) != said.npos);
  }
}

TEST_CASE("Byte ranges with a hole, an overlap or beyond the file are refused by name and byte") {
  const int64_t header = 8 + std::ssize(two("[0,4]", "[4,8]"));
  const Case cases[] = {
      {"overlap by one", file_of(two("[0,4]", "[3,7]"), 7),
       "an overlap with tensor 'b': it begins at offset 3, but the tensor before it ends at 4 "
       "(m.safetensors, byte " +
           std::to_string(header + 3) + ")"},
      {"same range", file_of(two("[0,4]", "[0,4]"), 4), "an overlap"},
      {"hole of one", file_of(two("[0,4]", "[5,9]"), 9),
       "a hole before tensor 'b': it begins at offset 5, but the tensor before it ends at 4"},
      {"hole at the start", file_of(two("[1,5]", "[5,9]"), 9),
       "a hole before tensor 'a': it begins at offset 1"},
      {"beyond the file", file_of(two("[0,4]", "[4,8]"), 4), "the file ends within tensor 'b'"},
      {"far beyond the file", file_of(f32("[2]", "[9223372036854775799,9223372036854775807]"), 8),
       "a hole before tensor 't'"},
      {"huge and cut",
       file_of(tensor(R"("U8")", "[1152921504606846975]", "[0,1152921504606846975]"), 8),
       "the file ends within tensor 't'"},
      {"empty tensor inside another",
       file_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
               R"("b":{"dtype":"U8","shape":[0],"data_offsets":[2,2]}})",
               4),
       "an overlap with tensor 'b': it begins at offset 2"},
      {"empty tensor after the end",
       file_of(R"({"b":{"dtype":"U8","shape":[0],"data_offsets":[2,2]}})"), "a hole"},
  };
  for (const auto& [name, file, expected] : cases) {
    const std::string said = header_refusal(file);
    CAPTURE(name);
    CAPTURE(said);
    CHECK(said.find(expected) != said.npos);
  }
}

TEST_CASE("Every truncation of a good file is refused") {
  const std::string file = file_of(two("[0,4]", "[4,8]") + "   ", 8);
  REQUIRE(header_refusal(file) == "accepted");
  for (size_t size = 0; size < file.size(); ++size)
    CHECK(header_refusal(file.substr(0, size)) != "accepted");
}

TEST_CASE("Every single changed byte of a header is refused or still describes the whole file") {
  const std::string good = file_of(two("[0,4]", "[4,8]"), 8);
  for (size_t at = 0; at < good.size() - 8; ++at) {
    for (const int value : {0, 9, 32, 34, 44, 45, 48, 49, 57, 91, 92, 93, 123, 125, 128, 255}) {
      std::string changed = good;
      changed[at] = static_cast<char>(value);
      try {
        const SafetensorsLayout layout = parse_safetensors(bytes_of(changed), "m");
        int64_t bytes = 0;
        for (const StoredTensor& tensor : layout.tensors) bytes += tensor.nbytes;
        CHECK(bytes == 8);
      } catch (const IoError& error) {
        CHECK(error.code() == ExitCode::kCorruptData);
      }
    }
  }
}

TEST_CASE("Legal corners are accepted") {
  CHECK(parse_safetensors(bytes_of(file_of("{}")), "m").tensors.empty());
  CHECK(parse_safetensors(bytes_of(file_of("{}       ")), "m").tensors.empty());
  CHECK(parse_safetensors(bytes_of(file_of(R"({"__metadata__":{}})")), "m").metadata.empty());

  const std::string file = file_of(
      "{ \"z\" : {\"data_offsets\":[4,8],\n\"shape\":[],\"dtype\":\"F32\"},"
      R"("e":{"dtype":"F64","shape":[3,0,9223372036854775807],"data_offsets":[4,4]},)"
      R"("__metadata__":{"format":"pt","":"é"},)"
      R"("":{"dtype":"F4","shape":[2,4],"data_offsets":[0,4]},)"
      R"("end":{"dtype":"I64","shape":[0],"data_offsets":[8,8]}} )",
      8);
  const SafetensorsLayout layout = parse_safetensors(bytes_of(file), "m");
  REQUIRE(layout.tensors.size() == 4);
  CHECK(layout.tensors[0].name == "");
  CHECK(layout.tensors[0].numel == 8);
  CHECK(layout.tensors[0].nbytes == 4);
  CHECK(layout.tensors[0].offset_bytes == std::ssize(file) - 8);
  CHECK(layout.tensors[1].name == "e");
  CHECK(layout.tensors[1].nbytes == 0);
  CHECK(layout.tensors[2].name == "z");
  CHECK(layout.tensors[2].shape.empty());
  CHECK(layout.tensors[2].numel == 1);
  CHECK(layout.tensors[2].offset_bytes == std::ssize(file) - 4);
  CHECK(layout.tensors[3].name == "end");
  CHECK(layout.metadata == std::map<std::string, std::string>{{"", "é"}, {"format", "pt"}});
}

}  // namespace
}  // namespace fsdp

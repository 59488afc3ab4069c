// Parses pickles that torch.save writes, and hostile ones.
#include "io/pickle.h"

#include <doctest/doctest.h>

#include "fsdp/error.h"
#include "io/support/byte_readers.h"
#include "support/hostile_bytes.h"
#include "support/pickle_bytes.h"

namespace fsdp {
namespace {

using Kind = PickleValue::Kind;
using namespace std::string_literals;

Pickle parsed(const std::string& bytes) {
  return parse_pickle(std::as_bytes(std::span(bytes)), "f");
}

std::string refusal(const std::string& bytes) {
  try {
    parsed(bytes);
  } catch (const IoError& error) {
    CHECK(error.code() == ExitCode::kCorruptData);
    CHECK(error.text().where == "f");
    CHECK(!error.text().hint.empty());
    return error.text().what;
  }
  return "accepted";
}

TEST_CASE("a state_dict is a dict of tensors: record, offset, shape and strides") {
  const Pickle pickle =
      parsed(pickled_state_dict({.numel = 9, .offset = 2, .shape = {2, 3}, .strides = {1, 2}}));
  REQUIRE(pickle.root->kind == Kind::kDict);
  REQUIRE(pickle.root->items.size() == 2);
  CHECK(pickle.root->items[0]->text == "w");
  REQUIRE(pickle.root->items[1]->kind == Kind::kTensor);
  const PickledTensor& tensor = *pickle.root->items[1]->tensor;
  CHECK(tensor.dtype == StoredDType::kF32);
  CHECK(tensor.record == "0");
  CHECK(tensor.record_bytes == 36);
  CHECK(tensor.offset == 2);
  CHECK(tensor.shape == std::vector<int64_t>{2, 3});
  CHECK(tensor.strides == std::vector<int64_t>{1, 2});
}

TEST_CASE("an OrderedDict is a dict, and what is put into it later is in it") {
  const Pickle pickle = parsed(
      "\x80\x02"
      "ccollections\nOrderedDict\nq\x00)Rq\x01("s +
      pickled_text("a") + "K\x07"s + pickled_text("b") + "h\x01u}X\x01\x00\x00\x00vNsb."s);
  REQUIRE(pickle.root->kind == Kind::kDict);
  REQUIRE(pickle.root->items.size() == 4);
  CHECK(pickle.root->items[1]->integer == 7);
  CHECK(pickle.root->items[3] == pickle.root);  // the list contains itself
}

TEST_CASE("a module of TorchScript is its attributes") {
  const Pickle pickle = parsed(
      "\x80\x02"
      "c__torch__.a\nNet\n)\x81}("s +
      pickled_text("n") + "\x8a\x08\xfe\xff\xff\xff\xff\xff\xff\xff\x75\x62."s);
  REQUIRE(pickle.root->kind == Kind::kObject);
  CHECK(pickle.root->text == "__torch__.a.Net");
  REQUIRE(pickle.root->items.size() == 1);
  CHECK(pickle.root->items[0]->items[1]->integer == -2);
}

TEST_CASE("what runs code is refused by name, wherever it stands") {
  CHECK(refusal("\x80\x02"
                "cos\nsystem\nX\x02\x00\x00\x00ls\x85R."s) ==
        "the file names 'os.system', which runs code and does not belong in a weight file");
  CHECK(refusal("\x80\x02"
                "c__builtin__\neval\n."s)
            .starts_with("the file names '__builtin__.eval', "));
  CHECK(refusal("\x80\x04."s) == "the pickle has protocol 4, expected 2");
}

TEST_CASE(
    "an object of another class is read over with all that is put into it, and has its name") {
  const std::string empty_namespace = "cargparse\nNamespace\n)\x81";
  const std::string set = "c__builtin__\nset\n](K\x01K\x02\x65\x85R";
  for (const std::string& value :
       {empty_namespace + "}" + pickled_text("a") + "K\x01sb", empty_namespace,
        empty_namespace + "(" + pickled_text("a") + "K\x01u", empty_namespace + "K\x01\x61",
        empty_namespace + ")R"}) {
    CAPTURE(value);
    const Pickle pickle = parsed("\x80\x02" + value + ".");
    CHECK(pickle.root->kind == Kind::kUnread);
    CHECK(pickle.root->text == "argparse.Namespace");
  }
  CHECK(parsed("\x80\x02" + set + ".").root->text == "__builtin__.set");
  CHECK(parsed("\x80\x02"
               "ctorch\nfloat16\n."s)
            .root->text == "torch.float16");
  // A number of more than 64 bits must have no value. It must not become 0.
  CHECK(parsed("\x80\x02\x8a\x09\x01\0\0\0\0\0\0\0\0."s).root->kind == Kind::kOther);
}

// Returns the pickle of the call torch._utils.FUNCTION(storage of 6 floats, 0, (6,), (1,), MORE).
std::string rebuilt(const std::string& function, const std::string& more,
                    const std::string& type = "FloatStorage") {
  return "ctorch._utils\n" + function + "\n((" + pickled_text("storage") + "ctorch\n" + type +
         "\n" + pickled_text("0") + pickled_text("cpu") + "K\x06tQK" + '\0' + "K\x06\x85K\x01\x85" +
         more + "tR";
}

TEST_CASE("every argument of a tensor's function is honoured or makes the tensor unreadable") {
  const std::string hooks = "ccollections\nOrderedDict\n)R", grad = "\x88";
  const auto value = [](const std::string& bytes) { return parsed("\x80\x02" + bytes + "."); };
  const auto unread = [&](const std::string& bytes) {
    const Pickle pickle = value(bytes);
    return pickle.root->kind == Kind::kUnreadTensor ? pickle.root->text : "read";
  };
  const auto metadata = [](const std::string& key, const std::string& flag) {
    return "}" + pickled_text(key) + flag + "s";
  };
  CHECK(unread(rebuilt("_rebuild_tensor", "")) == "read");
  CHECK(unread(rebuilt("_rebuild_tensor_v2", grad + hooks)) == "read");
  CHECK(unread(rebuilt("_rebuild_tensor_v2", grad + hooks + "}")) == "read");
  CHECK(unread(rebuilt("_rebuild_tensor_v2", grad + hooks + metadata("neg", "\x89"))) == "read");
  CHECK(unread(rebuilt("_rebuild_tensor_v2", grad + hooks + metadata("neg", "\x88"))) ==
        "has its 'neg' bit set");
  CHECK(unread(rebuilt("_rebuild_tensor_v2", grad + hooks + metadata("new", "\x88"))) ==
        "has its 'new' bit set");
  CHECK(unread(rebuilt("_rebuild_tensor_v2", grad + hooks, "QInt8Storage")) ==
        "is of a 'torch.QInt8Storage'");
  CHECK(unread(rebuilt("_rebuild_tensor_v3", grad + hooks + "ctorch\nuint32\n")) == "read");
  CHECK(unread(rebuilt("_rebuild_tensor_v3", grad + hooks + "ctorch\nbits8\n")) ==
        "is of type 'torch.bits8'");
  CHECK(unread(rebuilt("_rebuild_qtensor", grad + hooks)) ==
        "is made by 'torch._utils._rebuild_qtensor'");
  const auto refused = [](const std::string& bytes) { return refusal("\x80\x02" + bytes + "."); };
  CHECK(refused(rebuilt("_rebuild_tensor_v2", grad))
            .ends_with("'torch._utils._rebuild_tensor_v2' has 5 arguments, expected 6 to 7"));
  CHECK(refused(rebuilt("_rebuild_tensor", grad))
            .ends_with("'torch._utils._rebuild_tensor' has 5 arguments, expected 4"));
  CHECK(refused(rebuilt("_rebuild_tensor_v2", grad + hooks + "K\x01K\x01s"))
            .ends_with("has backward hooks, which are not loaded"));
  const std::string other = rebuilt("_rebuild_tensor", "", "IntStorage");
  CHECK(refused(rebuilt("_rebuild_tensor", "") + other + "\x86")
            .ends_with("a storage has two types or sizes"));
}

TEST_CASE("what no torch.save writes is refused with its byte") {
  CHECK(refusal("") == "byte 0 of the pickle: it ends too early");
  CHECK(refusal("PK"s) == "byte 1 of the pickle: it does not begin as a pickle");
  CHECK(refusal("\x80\x02"s) == "byte 2 of the pickle: it ends too early");
  CHECK(refusal("\x80\x02."s) == "byte 3 of the pickle: a value is missing");
  CHECK(refusal("\x80\x02NN."s) == "byte 5 of the pickle: it has values left at its end");
  CHECK(refusal("\x80\x02(."s) == "byte 4 of the pickle: a value is missing");
  CHECK(refusal("\x80\x02t."s) == "byte 3 of the pickle: a mark is missing");
  CHECK(refusal("\x80\x02}(Nu."s) == "byte 6 of the pickle: a key has no value");
  CHECK(refusal("\x80\x02N(NNu."s) ==
        "byte 7 of the pickle: values are added to a value that is not a container");
  CHECK(refusal("\x80\x02h\x05."s) ==
        "byte 4 of the pickle: a value is read that was never stored");
  CHECK(refusal("\x80\x02X\xff\xff\xff\xff."s) == "byte 7 of the pickle: it ends too early");
  CHECK(refusal("\x80\x02i."s) ==
        "byte 2 of the pickle: torch.save does not write the instruction 0x69");
  CHECK(refusal("\x80\x02N)R."s) == "byte 5 of the pickle: the called value is not a function");
  CHECK(refusal("\x80\x02"
                "ctorch._utils\n_rebuild_tensor_v2\n)R."s)
            .ends_with("'torch._utils._rebuild_tensor_v2' has 0 arguments, expected 6 to 7"));
}

TEST_CASE("a sample, its truncations and every changed byte") {
  const SampledReader sampled{byte_reader("pickle"), pickled_state_dict({})};
  check_sample_and_empty(sampled);
  check_truncations(sampled);
  check_changed_bytes(sampled);
}

}  // namespace
}  // namespace fsdp

// Tests the PTX interpreter: its results, and the errors that it finds.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "runtime/buffer.h"
#include "simulator/ptx/launch.h"

using namespace fsdp::testing;
using namespace fsdp::testing::ptx;

namespace {

// Returns a kernel `k` with 64-bit parameters p0, p1, … and some registers of each type.
std::string kernel(const std::string& body, int parameters = 2) {
  std::string text = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(";
  for (int i = 0; i < parameters; ++i) {
    text += (i == 0 ? ".param .u64 p" : ", .param .u64 p") + std::to_string(i);
  }
  return text +
         ")\n{\n.reg .pred %p<8>;\n.reg .b16 %h<8>;\n.reg .b32 %r<16>;\n.reg .b64 %d<16>;\n"
         ".reg .f32 %f<8>;\n.reg .f64 %g<8>;\n" +
         body + "\nret;\n}\n";
}

template <class T>
class PtxDevice {
 public:
  explicit PtxDevice(const std::vector<T>& values) : PtxDevice(values.size(), true) {
    std::copy(values.begin(), values.end(), data());
  }
  explicit PtxDevice(size_t count, bool defined = false)
      : buffer_(fsdp::allocate_host(static_cast<int64_t>(count * sizeof(T)))) {
    memory_.add(buffer_.data(), buffer_.bytes(), "values", defined);
  }
  std::span<const T> values() const { return {data(), buffer_.bytes() / sizeof(T)}; }
  DeviceMemory& memory() { return memory_; }

  LaunchReport run(const std::string& text, Dim grid = {}, Dim block = {}, uint64_t p1 = 0,
                   uint32_t seed = 1) {
    const Module module = parse(text);
    std::vector<std::byte> parameters(16);
    const std::array<uint64_t, 2> given{reinterpret_cast<uint64_t>(buffer_.data()), p1};
    std::memcpy(parameters.data(), given.data(), 16);
    return ptx::run({.kernel = &module.at("k"),
                     .grid = grid,
                     .block = block,
                     .parameters = parameters,
                     .seed = seed},
                    memory_);
  }

 private:
  T* data() const { return static_cast<T*>(buffer_.data()); }

  fsdp::Buffer buffer_;
  DeviceMemory memory_;
};

// Runs one thread. `body` computes a result in a register. The kernel stores this register at p0.
template <class T>
T result_of(const std::string& body, const std::string& stored) {
  PtxDevice<T> device(1);
  device.run(kernel("ld.param.u64 %d0, [p0];\n" + body + "\nst.global." + stored + ";"));
  return device.values()[0];
}

uint32_t word(const std::string& body) { return result_of<uint32_t>(body, "u32 [%d0], %r0"); }
uint64_t wide(const std::string& body) { return result_of<uint64_t>(body, "u64 [%d0], %d1"); }
float single(const std::string& body) { return result_of<float>(body, "f32 [%d0], %f0"); }

// Returns the error of a kernel. In its body, %r1 is the thread, %r2 the block, %d0 the address of
// 64 words, and %d2 the address of the thread's own word.
std::string objection(const std::string& body, Dim grid = {}, Dim block = {}, uint32_t seed = 1) {
  try {
    PtxDevice<uint32_t>(std::vector<uint32_t>(64, 1))
        .run(kernel("ld.param.u64 %d0, [p0];\nmov.u32 %r1, %tid.x;\nmov.u32 %r2, %ctaid.x;\n"
                    "mul.wide.u32 %d1, %r1, 4;\nadd.s64 %d2, %d0, %d1;\n" +
                    body),
             grid, block, 0, seed);
  } catch (const Objection& found) {
    return found.what();
  }
  return "";
}

void check_objects(const std::string& expected, const std::string& body, Dim grid = {},
                   Dim block = {}) {
  for (const uint32_t seed : {0U, 1U, 2U}) {
    const std::string text = objection(body, grid, block, seed);
    CAPTURE(text);
    CHECK(text.find(expected) != std::string::npos);
  }
}

}  // namespace

TEST_CASE("a kernel runs over all threads of all blocks, whatever the order") {
  // Sets p0[i] = i * i for each i below p1. Each thread computes two elements.
  const std::string square = kernel(R"(
    ld.param.u64 %d0, [p0];  // a comment
    ld.param.u64 %d1, [p1];
    cvta.to.global.u64 %d2, %d0;
    mov.u32 %r1, %ctaid.x;  mov.u32 %r2, %ntid.x;  mov.u32 %r3, %tid.x;
    mad.lo.s32 %r4, %r1, %r2, %r3;
    cvt.u64.u32 %d3, %r4;
$loop:
    setp.ge.u64 %p1, %d3, %d1;
    @%p1 bra $done;
    shl.b64 %d4, %d3, 2;
    add.s64 %d5, %d2, %d4;
    mul.lo.s64 %d6, %d3, %d3;
    cvt.u32.u64 %r5, %d6;
    st.global.u32 [%d5], %r5;
    add.s64 %d3, %d3, 80;
    bra.uni $loop;
$done:)");
  for (const uint32_t seed : {0U, 1U, 2U}) {
    PtxDevice<uint32_t> device(150);
    const LaunchReport report = device.run(square, {.x = 2}, {.x = 40}, 150, seed);
    for (uint32_t i = 0; i < 150; ++i) CHECK(device.values()[i] == i * i);
    CHECK(report.stores == 150);
    CHECK(report.loads == 0);
  }
}

TEST_CASE("integers") {
  CHECK(word("mov.u32 %r1, -2; mul.hi.u32 %r0, %r1, 3;") == 2);
  CHECK(word("mov.u32 %r1, -2; mul.hi.s32 %r0, %r1, 3;") == 0xffffffff);
  CHECK(wide("mov.u32 %r1, -2; mul.wide.s32 %d1, %r1, 3;") == static_cast<uint64_t>(-6));
  CHECK(wide("mov.u32 %r1, -2; mov.u64 %d2, 1; mad.wide.u32 %d1, %r1, 3, %d2;") == 12884901883);
  CHECK(word("mov.u32 %r1, 0x80000000; shr.s32 %r0, %r1, 40;") == 0xffffffff);
  CHECK(word("mov.u32 %r1, 0x80000000; shr.u32 %r0, %r1, 40;") == 0);
  CHECK(word("mov.u32 %r1, 3; shl.b32 %r0, %r1, 31;") == 0x80000000);
  CHECK(word("mov.u32 %r1, -7; div.s32 %r0, %r1, 2;") == static_cast<uint32_t>(-3));
  CHECK(word("mov.u32 %r1, -7; rem.s32 %r0, %r1, 4;") == static_cast<uint32_t>(-3));
  CHECK(word("mov.u32 %r1, 0xf0; popc.b32 %r0, %r1;") == 4);
  CHECK(word("mov.u32 %r1, 0xf0; clz.b32 %r0, %r1;") == 24);
  CHECK(word("mov.u32 %r1, 0xf0; brev.b32 %r0, %r1;") == 0x0f000000);
  CHECK(word("mov.u32 %r1, -5; abs.s32 %r0, %r1;") == 5);
  CHECK(word("mov.u32 %r1, -5; min.s32 %r0, %r1, 3;") == static_cast<uint32_t>(-5));
  CHECK(word("mov.u32 %r1, -5; min.u32 %r0, %r1, 3;") == 3);
  CHECK(word("mov.u32 %r1, 5; not.b32 %r0, %r1;") == ~5U);
  CHECK(word("mov.u32 %r1, 0x12345678; mov.u32 %r2, 0xaabbccdd; prmt.b32 %r0, %r1, %r2, 0x5410;") ==
        0xccdd5678);
  CHECK(word("mov.u32 %r1, 0x00008000; prmt.b32 %r0, %r1, 0, 0x9991;") == 0xffffff80);
  CHECK(word("mov.u32 %r1, 0xff00ff00; lop3.b32 %r0, %r1, 0x0f0f0f0f, 0x33333333, 0xca;") ==
        ((0xff00ff00U & 0x0f0f0f0fU) | (~0xff00ff00U & 0x33333333U)));
  CHECK(word("mov.u32 %r1, 1; shf.l.wrap.b32 %r0, 0x80000000, %r1, 33;") == 3);
  CHECK(word("mov.u32 %r1, 1; shf.r.clamp.b32 %r0, 0x80000000, %r1, 40;") == 1);
  CHECK(word("mov.u32 %r1, 0x0000ab00; bfe.u32 %r0, %r1, 8, 8;") == 0xab);
  CHECK(word("mov.u32 %r1, 0xab; bfi.b32 %r0, %r1, 0x11223344, 8, 8;") == 0x1122ab44);
  CHECK(word("mov.u32 %r1, 0xab; bfi.b32 %r0, %r1, 0x11223344, 28, 8;") == 0xb1223344);
  CHECK(wide("mov.u64 %d2, -1; bfi.b64 %d1, %d2, 0, 32, 32;") == 0xffffffff00000000);
  CHECK(word("mov.u32 %r1, 0x0000ab00; bfe.s32 %r0, %r1, 8, 8;") == 0xffffffab);
  CHECK(word("mov.b64 %d2, 0x1234567800000001; mov.b64 {%r0, %r1}, %d2; add.s32 %r0, %r0, %r1;") ==
        0x12345679);
  CHECK(wide("mov.u32 %r1, 7; mov.u32 %r2, 9; mov.b64 %d1, {%r1, %r2};") == 0x900000007);
  CHECK(word("setp.gt.s32 %p1, -1, 0; selp.b32 %r0, 1, 2, %p1;") == 2);
  CHECK(word("setp.gt.u32 %p1, -1, 0; selp.b32 %r0, 1, 2, %p1;") == 1);
  CHECK(word("mov.u32 %r0, 0; setp.eq.s32 %p1, 1, 1; @!%p1 mov.u32 %r0, 9; @%p1 add.s32 %r0, %r0, "
             "4;") == 4);
}

TEST_CASE("floating point is rounded to the nearest even, with one NaN") {
  CHECK(single("add.rn.f32 %f0, 0f3F800000, 0f33800000;") == 1.0F + 0x1p-24F);
  CHECK(single("fma.rn.f32 %f0, 0f3F800001, 0f3F800001, 0fBF800000;") ==
        std::fma(1.0F + 0x1p-23F, 1.0F + 0x1p-23F, -1.0F));
  CHECK(single("div.rn.f32 %f0, 0f3F800000, 0f40400000;") == 1.0F / 3.0F);
  CHECK(single("sqrt.rn.f32 %f0, 0f40000000;") == std::sqrt(2.0F));
  CHECK(single("rcp.rn.f32 %f0, 0f40400000;") == 1.0F / 3.0F);
  CHECK(single("min.f32 %f0, 0f7FC00000, 0f40000000;") == 2.0F);
  CHECK(std::bit_cast<uint32_t>(single("sqrt.rn.f32 %f0, 0fBF800000;")) == 0x7fffffff);
  CHECK(word("setp.lt.f32 %p1, 0f7FC00000, 0f3F800000; selp.u32 %r0, 1, 0, %p1;") == 0);
  CHECK(word("setp.ltu.f32 %p1, 0f7FC00000, 0f3F800000; selp.u32 %r0, 1, 0, %p1;") == 1);
  CHECK(word("setp.neu.f32 %p1, 0f7FC00000, 0f7FC00000; selp.u32 %r0, 1, 0, %p1;") == 1);
  CHECK(word("setp.ne.f32 %p1, 0f7FC00000, 0f7FC00000; selp.u32 %r0, 1, 0, %p1;") == 0);
}

TEST_CASE("conversions saturate, round as they say, and give one NaN in 16 bits") {
  CHECK(word("cvt.rzi.s32.f32 %r0, 0fC0200000;") == static_cast<uint32_t>(-2));
  CHECK(word("cvt.rni.s32.f32 %r0, 0f40200000;") == 2);
  CHECK(word("cvt.rzi.s32.f32 %r0, 0f7F800000;") == 0x7fffffff);
  CHECK(word("cvt.rzi.s32.f32 %r0, 0fFF800000;") == 0x80000000);
  CHECK(word("cvt.rzi.u32.f32 %r0, 0fBF800000;") == 0);
  CHECK(word("cvt.rzi.s32.f32 %r0, 0f7FC00000;") == 0);
  CHECK(single("cvt.rn.f32.u32 %f0, 0xffffffff;") == 4294967296.0F);
  CHECK(single("mov.b64 %d1, 0x3ff0000010000000; mov.b64 %g0, %d1; cvt.rn.f32.f64 %f0, %g0;") ==
        1.0F);
  CHECK(word("cvt.rn.bf16.f32 %h0, 0f3F808000; cvt.u32.u16 %r0, %h0;") == 0x3f80);
  CHECK(word("cvt.rn.bf16.f32 %h0, 0f3F818000; cvt.u32.u16 %r0, %h0;") == 0x3f82);
  CHECK(word("cvt.rn.bf16.f32 %h0, 0f7FC00000; cvt.u32.u16 %r0, %h0;") == 0x7fff);
  CHECK(word("cvt.rn.f16.f32 %h0, 0f3F800000; cvt.u32.u16 %r0, %h0;") == 0x3c00);
  CHECK(word("cvt.rn.bf16x2.f32 %r0, 0f3F800000, 0f40000000;") == 0x3f804000);
  CHECK(word("mov.u32 %r1, 0x80; cvt.s32.s8 %r0, %r1;") == 0xffffff80);
  CHECK(wide("mov.u32 %r1, -1; cvt.s64.s32 %d1, %r1;") == ~uint64_t{0});
  CHECK(wide("mov.u32 %r1, -1; cvt.u64.u32 %d1, %r1;") == 0xffffffff);
}

TEST_CASE("lanes exchange values and votes") {
  // Sums over the warp in steps of halving distance.
  std::string sum = "cvt.rn.f32.u32 %f0, %r1;\n";
  for (const int by : {16, 8, 4, 2, 1}) {
    sum += "mov.b32 %r3, %f0; shfl.sync.down.b32 %r4|%p1, %r3, " + std::to_string(by) +
           ", 31, -1; mov.b32 %f1, %r4; add.rn.f32 %f0, %f0, %f1;\n";
  }
  PtxDevice<float> device(32);
  device.run(kernel("ld.param.u64 %d0, [p0]; mov.u32 %r1, %tid.x; mul.wide.u32 %d1, %r1, 4;\n"
                    "add.s64 %d2, %d0, %d1;" +
                    sum + "st.global.f32 [%d2], %f0;"),
             {}, {.x = 32});
  CHECK(device.values()[0] == 31 * 32 / 2);
  PtxDevice<uint32_t> votes(32);
  votes.run(kernel("ld.param.u64 %d0, [p0]; mov.u32 %r1, %laneid; mul.wide.u32 %d1, %r1, 4;\n"
                   "add.s64 %d2, %d0, %d1; setp.lt.u32 %p1, %r1, 3;\n"
                   "vote.sync.ballot.b32 %r2, %p1, -1; st.global.u32 [%d2], %r2;"),
            {}, {.x = 32});
  CHECK(votes.values()[31] == 7);
}

TEST_CASE("threads of a block pass values through shared memory, behind a barrier") {
  const std::string body =
      ".shared .align 4 .b8 box[256];\n"
      "mov.u32 %r3, box; shl.b32 %r4, %r1, 2; add.s32 %r5, %r3, %r4; st.shared.u32 [%r5], %r1;\n";
  const std::string read =
      "sub.s32 %r6, 63, %r1; shl.b32 %r6, %r6, 2; add.s32 %r6, %r3, %r6;\n"
      "ld.shared.u32 %r7, [%r6]; st.global.u32 [%d2], %r7;";
  CHECK(objection(body + "bar.sync 0;\n" + read, {}, {.x = 64}).empty());
  // An address may be below its space if an added offset moves it into the space.
  CHECK(objection(".shared .align 4 .b8 box[256];\nmov.u32 %r3, 0xfffffffc;\n"
                  "st.shared.u32 [%r3+8], %r1;\nld.shared.u32 %r4, [box+4];")
            .empty());
  const std::string again = "bar.sync 0;\nst.shared.u32 [%r5], %r3;\n";
  check_objects("a race: it", body + again + read, {}, {.x = 64});
  check_objects("nobody has written", body + "bar.sync 0;\nld.shared.u32 %r7, [box+252];", {},
                {.x = 32});
  check_objects("of shared memory, which has 256", body + "ld.shared.u32 %r7, [box+256];");
}

TEST_CASE("sleeping moves the device's clock on, and nothing else does") {
  const std::string begin = "mov.u64 %d2, %globaltimer;\n";
  const std::string end = "mov.u64 %d1, %globaltimer;\nsub.s64 %d1, %d1, %d2;";
  CHECK(wide(begin + "mov.u32 %r1, %tid.x;\nadd.s32 %r1, %r1, 5;\n" + end) == 0);
  CHECK(wide(begin + "nanosleep.u32 700;\nmov.u32 %r1, 33;\nnanosleep.u32 %r1;\n" + end) == 733);
  CHECK(wide(begin + "nanosleep.u32 1000001;\n" + end) == 1'000'000);
  CHECK(wide(begin + "setp.eq.u32 %p1, 1, 2;\n@%p1 nanosleep.u32 9;\n" + end) == 0);
}

TEST_CASE("a barrier takes all warps to the latest, and a launch ends with the latest block") {
  // Each thread sleeps for its number, plus 1000 for each block before its own. Then it reaches a
  // barrier.
  PtxDevice<uint64_t> times(2 * 64);
  const LaunchReport report = times.run(kernel(R"(
    ld.param.u64 %d0, [p0];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mad.lo.u32 %r3, %r2, 1000, %r1;
    nanosleep.u32 %r3;
    bar.sync 0;
    mad.lo.u32 %r4, %r2, 64, %r1;
    mul.wide.u32 %d1, %r4, 8;
    add.s64 %d2, %d0, %d1;
    mov.u64 %d3, %globaltimer;
    st.global.u64 [%d2], %d3;)"),
                                        {.x = 2}, {.x = 64});
  for (size_t i = 0; i < 128; ++i) CHECK(times.values()[i] == (i < 64 ? 63 : 1063));
  CHECK(report.end_ns == 1063);
}

TEST_CASE("what it does not understand it refuses, with the line") {
  check_objects("unknown opcode (line 18: frobnicate.b32 %r3, %r1)", "\nfrobnicate.b32 %r3, %r1;");
  check_objects("unknown modifier 'ftz'", "add.rn.ftz.f32 %f0, %f1, %f1;");
  check_objects("unknown modifier 'approx'", "sqrt.approx.f32 %f0, %f1;");
  check_objects("unknown modifier 'approx'", "rcp.approx.f32 %f0, %f1;");
  check_objects("compile with -fmad=false", "mul.f32 %f0, %f1, %f1;");
  check_objects("unknown register '%q1'", "mov.u32 %q1, 0;");
  check_objects("unknown operand 'nothing'", "mov.u32 %r3, nothing;");
  check_objects("unknown operand '%tid.w'", "mov.u32 %r3, %tid.w;");
  check_objects("unknown label '$nowhere'", "bra $nowhere;");
  check_objects("unknown directive '.branchtargets a, b'", ".branchtargets a, b;");
  check_objects("a barrier that is not the whole block's", "bar.sync 1, 64;");
  check_objects("unknown opcode", "atom.global.add.u32 %r3, [%d0], 1;");
  check_objects("an unknown conversion", "cvt.rn.bf16.f64 %h0, %g0;");
  check_objects("no result", "add.s32;");
  check_objects("an operand is missing", "add.s32 %r3, , %r1;");
  check_objects("an unknown type", "add.u8 %r3, %r1, %r1;");
  check_objects("a product without .lo, .hi or .wide", "mul.s32 %r3, %r1, %r1;");
  check_objects("a comparison without an operator", "setp.s32 %p1, %r1, 0;");
  check_objects("a declaration without a type (line 18: .shared box[4])", "\n.shared box[4];");
  CHECK_THROWS_AS(parse(".global .f32 table[4];"), Objection);
  CHECK_THROWS_AS(parse(".func (.param .b32 r) f() { ret; }"), Objection);
  CHECK_THROWS_WITH_AS(parse(".visible .entry k()\n{\nret;\n"), "its body does not end (kernel k)",
                       Objection);
}

TEST_CASE("a launch that does not fit its kernel is refused") {
  const Module module = parse(kernel(""));
  DeviceMemory memory;
  const auto launched = [&](Dim grid, size_t bytes) {
    run({.kernel = &module.at("k"), .grid = grid, .parameters = std::vector<std::byte>(bytes)},
        memory);
  };
  CHECK_NOTHROW(launched({}, 16));
  CHECK_THROWS_WITH_AS(launched({}, 8), "8 bytes of parameters, 16 expected (kernel k)", Objection);
  CHECK_THROWS_WITH_AS(launched({.x = 65536, .y = 65536}, 16),
                       doctest::Contains("4294967296 blocks, more than the 4294967294 whose "
                                         "accesses are told apart (kernel k)"),
                       Objection);
}

TEST_CASE("accesses that go astray are refused, with block, thread and instruction") {
  check_objects("4 bytes at", "st.global.u32 [%d0+256], %r1;");
  check_objects("in k, block (0, 0, 0), thread 0: st.global.u32 [%d0+-4], %r1",
                "st.global.u32 [%d0+-4], %r1;");
  check_objects("a misaligned access of 16 bytes",
                "ld.global.v4.u32 {%r3, %r4, %r5, %r6}, [%d0+4];");
  check_objects("a write to parameters", "st.param.u32 [p0], %r1;");
  check_objects("trap", "trap;");
  check_objects("a division by zero", "mov.u32 %r3, 0; div.u32 %r4, %r1, %r3;");
  PtxDevice<uint32_t> fresh(4);
  CHECK_THROWS_AS(fresh.run(kernel("ld.param.u64 %d0, [p0]; ld.global.u32 %r1, [%d0];")),
                  Objection);
  fresh.memory().remove(fresh.values().data());
  CHECK_THROWS_AS(fresh.run(kernel("ld.param.u64 %d0, [p0]; st.global.u32 [%d0], 1;")), Objection);
}

TEST_CASE("races are found whatever the order in which threads happen to run") {
  // All threads of one block write word 0. Then the threads of two blocks do. Then block 1 reads
  // the word that block 0 wrote.
  check_objects("a race: it writes byte 0 of values", "st.global.u32 [%d0], %r1;", {}, {.x = 2});
  check_objects("a race: it writes byte 0 of values", "st.global.u32 [%d0], %r1;", {.x = 2});
  check_objects("a race",
                "setp.eq.u32 %p1, %r2, 0; @%p1 st.global.u32 [%d0], %r1;\n"
                "@!%p1 ld.global.u32 %r3, [%d0];",
                {.x = 2});
  // A barrier does not order accesses of different blocks.
  check_objects("a race: it",
                "ld.global.u32 %r3, [%d0]; bar.sync 0;\n"
                "setp.eq.u32 %p1, %r1, 0; @%p1 st.global.u32 [%d0], %r3;",
                {.x = 2}, {.x = 64});
  CHECK(objection("ld.global.u32 %r3, [%d0]; bar.sync 0;\n"
                  "setp.eq.u32 %p1, %r1, 0; @%p1 st.global.u32 [%d0], %r3;",
                  {}, {.x = 64})
            .empty());
  // The warp's barrier orders accesses within a warp, but not between warps.
  const std::string neighbour =
      "st.global.u32 [%d2], %r1; bar.warp.sync -1;\n"
      "xor.b32 %r3, %r1, BY; mul.wide.u32 %d3, %r3, 4;\n"
      "add.s64 %d4, %d0, %d3; ld.global.u32 %r4, [%d4];";
  const auto by = [&](const char* distance) {
    std::string text = neighbour;
    return text.replace(text.find("BY"), 2, distance);
  };
  CHECK(objection(by("1"), {}, {.x = 64}).empty());
  check_objects("a race: it", by("32"), {}, {.x = 64});
  // Different threads may write the two halves of a cell.
  CHECK(objection("cvt.u64.u32 %d3, %r1; add.s64 %d4, %d0, %d3; st.global.u8 [%d4], %r1;", {},
                  {.x = 64})
            .empty());
}

TEST_CASE("threads that should come together and do not are refused") {
  check_objects("a barrier that only some threads of a warp reach",
                "setp.lt.u32 %p1, %r1, 16; @%p1 bar.sync 0;", {}, {.x = 32});
  check_objects("lanes ffffffff are asked for and 0000ffff are there",
                "setp.ge.u32 %p1, %r1, 16; @%p1 bra $end;\n"
                "shfl.sync.down.b32 %r3, %r1, 1, 31, -1;\n$end:",
                {}, {.x = 32});
  check_objects("a thread that its own mask leaves out",
                "shfl.sync.down.b32 %r3, %r1, 1, 31, 0xfffffffe;", {}, {.x = 32});
  check_objects("a shuffle from lane 16, which is not there",
                "shfl.sync.down.b32 %r3, %r1, 8, 31, -1;", {}, {.x = 16});
  check_objects("0 blocks of 1 threads", "", {.x = 0});
  check_objects("1 blocks of 2048 threads", "", {}, {.x = 2048});
}

TEST_CASE("sectors are counted against the least that as many bytes need") {
  PtxDevice<uint32_t> values(std::vector<uint32_t>(1024, 1));
  const std::string text = kernel(
      "ld.param.u64 %d0, [p0]; ld.param.u64 %d3, [p1]; mov.u32 %r1, %tid.x; cvt.u64.u32 %d1, %r1;\n"
      "mul.lo.s64 %d1, %d1, %d3; add.s64 %d2, %d0, %d1; ld.global.u32 %r2, [%d2];");
  const LaunchReport dense = values.run(text, {}, {.x = 32}, 4);
  CHECK(dense.sectors == 4);
  CHECK(dense.least_sectors == 4);
  CHECK(values.run(text, {}, {.x = 32}, 64).sectors == 32);
}

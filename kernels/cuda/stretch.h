// Cuts a run of elements into vectors if the alignment of all its arrays allows it.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "kernels/element/block_index.h"

namespace fsdp::kernels::cuda {

inline constexpr int kVectorBytes = 16;

// A run of elements in several arrays. Every array has a vector boundary `skew` elements before its
// first element. If `skew` is kNoVectors, the arrays have no common boundary, and elements are
// accessed one by one.
struct Stretch {
  static constexpr int kNoVectors = -1;
  int64_t numel = 0;
  int32_t skew = kNoVectors;

  int64_t blocks() const { return blocks_for(numel + (skew > 0 ? skew : 0)); }
};

// One of the arrays of a stretch: its address and the size of its elements.
struct Array {
  const void* data = nullptr;  // null: ignored
  int64_t element_bytes = 1;
};

// Returns the stretch of `numel` elements with vectors of `width` elements.
// Requires: each array is aligned to the size of its elements.
inline Stretch stretch_of(int64_t numel, int width, std::initializer_list<Array> arrays) {
  int skew = Stretch::kNoVectors;
  for (const Array& array : arrays) {
    if (array.data == nullptr) continue;
    const auto address = reinterpret_cast<uintptr_t>(array.data);
    const auto bytes = static_cast<uintptr_t>(array.element_bytes);
    const int own = static_cast<int>(address % (bytes * static_cast<uintptr_t>(width)) / bytes);
    if (skew != Stretch::kNoVectors && skew != own) return {numel, Stretch::kNoVectors};
    skew = own;
  }
  return {numel, skew};
}

#if defined(__CUDACC__)

// Calls vector(i) for each full vector of kWidth elements that begins at element i. Calls one(i)
// for every other element. All threads and blocks together visit each element once.
template <int kWidth, class Vector, class One>
__device__ __forceinline__ void for_each_element(const Stretch& stretch, int64_t block,
                                                 Vector vector, One one) {
  const int thread = static_cast<int>(threadIdx.x);
  if (stretch.skew == Stretch::kNoVectors) {
#pragma unroll 1
    for (int iteration = 0; iteration < kBlockNumel / kBlockThreads; ++iteration) {
      const int64_t i = element_of(block, thread, iteration, 1);
      if (i >= stretch.numel) return;
      one(i);
    }
    return;
  }
#pragma unroll 1
  for (int iteration = 0; iteration < kBlockNumel / (kBlockThreads * kWidth); ++iteration) {
    const int64_t i = element_of(block, thread, iteration, kWidth) - stretch.skew;
    if (i >= stretch.numel) return;
    if (i >= 0 && i + kWidth <= stretch.numel) {
      vector(i);
      continue;
    }
#pragma unroll 1
    for (int64_t j = i < 0 ? 0 : i; j < i + kWidth && j < stretch.numel; ++j) one(j);
  }
}

// The number of elements in a vector, given the sizes of two types. The wider type decides.
template <int kBytes, int kOtherBytes>
inline constexpr int kWidthOf = kVectorBytes / (kBytes > kOtherBytes ? kBytes : kOtherBytes);

// Returns the element's bits as an unsigned integer of its size.
template <class Element>
__device__ __forceinline__ auto bits_of(Element element) {
  if constexpr (sizeof(Element) == 8) return bits_as<uint64_t>(element);
  if constexpr (sizeof(Element) == 4) return bits_as<uint32_t>(element);
  if constexpr (sizeof(Element) == 2) return bits_as<uint16_t>(element);
  if constexpr (sizeof(Element) == 1) return bits_as<uint8_t>(element);
}

// [Note: vectors in words]
// The code unpacks and packs a vector by hand in 32-bit words and stores it by inline PTX.
// Without this, the compiler would emit several narrow accesses in two cases: if a struct is
// copied, or if the words are equal.
template <class Element>
__device__ __forceinline__ Element element_in(const uint32_t* words, int i) {
  if constexpr (sizeof(Element) == 8) {
    return bits_as<Element>(uint64_t{words[2 * i + 1]} << 32 | words[2 * i]);
  } else if constexpr (sizeof(Element) == 4) {
    return bits_as<Element>(words[i]);
  } else if constexpr (sizeof(Element) == 2) {
    return bits_as<Element>(static_cast<uint16_t>(words[i / 2] >> (i % 2 * 16)));
  } else {
    return bits_as<Element>(static_cast<uint8_t>(words[i / 4] >> (i % 4 * 8)));
  }
}

// Loads kWidth elements in one access. Requires: `from` is aligned to the size of the access, which
// is 4, 8 or 16 bytes.
template <class Element, int kWidth>
__device__ __forceinline__ void load_vector(const Element* from, Element (&to)[kWidth]) {
  constexpr int kBytes = sizeof(Element) * kWidth;
  uint32_t words[kBytes / 4];
  if constexpr (kBytes == 16) {
    const uint4 word = *reinterpret_cast<const uint4*>(from);
    words[0] = word.x, words[1] = word.y, words[2] = word.z, words[3] = word.w;
  } else if constexpr (kBytes == 8) {
    const uint2 word = *reinterpret_cast<const uint2*>(from);
    words[0] = word.x, words[1] = word.y;
  } else {
    static_assert(kBytes == 4);
    words[0] = *reinterpret_cast<const uint32_t*>(from);
  }
#pragma unroll
  for (int i = 0; i < kWidth; ++i) to[i] = element_in<Element>(words, i);
}

// Stores kWidth elements in one access, with the same requirement as load_vector. The "memory"
// clobber keeps the order of this store and the loads around it, because a run may be converted in
// place.
template <class Element, int kWidth>
__device__ __forceinline__ void store_vector(const Element (&from)[kWidth], Element* to) {
  constexpr int kBytes = sizeof(Element) * kWidth;
  constexpr int kBits = sizeof(Element) * 8;
  uint32_t words[kBytes / 4] = {};
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const auto bits = bits_of(from[i]);
    if constexpr (kBits == 64) {
      words[2 * i] = static_cast<uint32_t>(bits);
      words[2 * i + 1] = static_cast<uint32_t>(bits >> 32);
    } else {
      words[i * kBits / 32] |= static_cast<uint32_t>(bits) << (i * kBits % 32);
    }
  }
  const size_t address = __cvta_generic_to_global(to);  // st.global needs a global address
  if constexpr (kBytes == 16) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(words[0]),
                 "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
  } else if constexpr (kBytes == 8) {
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(address), "r"(words[0]), "r"(words[1])
                 : "memory");
  } else {
    static_assert(kBytes == 4);
    asm volatile("st.global.u32 [%0], %1;" ::"l"(address), "r"(words[0]) : "memory");
  }
}

#endif

}  // namespace fsdp::kernels::cuda

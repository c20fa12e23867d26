// Host emulation of the CUDA subset used by kernels/*.cu. Fibers, seeded schedule, deadlock detection.
#pragma once
#include <cstdint>
#include <cstring>
#include <cstdio>
#include <cstdlib>
#include <vector>
#include <string>
#include <map>
#include <utility>
#include <tuple>
#include <ucontext.h>
#include <setjmp.h>
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#define EMU_TSAN 1
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define EMU_ASAN 1
#endif
#define HPS_EMU 1
#define __global__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n) alignas(n)
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define HPS_SHARED(T, name, n) T* name = (T*)emu::shared(sizeof(T) * (n))

struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) ulonglong2 { unsigned long long x, y; };
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

struct uint3e { unsigned x, y, z; };
#ifdef EMU_TSAN
#define EMU_NS __attribute__((no_sanitize("thread"), noinline))
#else
#define EMU_NS
#endif
namespace emu {
enum St { RUN, WBLOCK, WWARP, DONE };
struct Block;
struct Fiber {
  ucontext_t uc; jmp_buf jb; bool started = false;
  St st = DONE; Block* blk = nullptr; unsigned lin = 0;
  uint3e tid{}; unsigned wmask = 0; int wop = 0; uint64_t wval = 0; uint64_t wres[32];
  size_t sh_off = 0; char* stack = nullptr;
#ifdef EMU_TSAN
  void* tsan = nullptr;
#endif
};
struct Block { uint3e bid{}; std::vector<Fiber*> f; std::vector<char> shmem; bool live = false; char sync_tag; };
struct Sched {
  uint3e gdim{}, bdim{}; uint64_t rng = 1; unsigned preempt = 0; // preempt: yield with prob preempt/256 at each access point
  Fiber* cur = nullptr; jmp_buf home; ucontext_t homeuc; void (*entry)(void**) = nullptr; void** args = nullptr;
  std::string err; uint64_t switches = 0;
#ifdef EMU_TSAN
  void* tsan_home = nullptr; char tag[2]; unsigned gen = 0; // tag[gen]: released by this launch, acquired by the next
#endif
};
EMU_NS inline Sched& S() { static thread_local Sched s; return s; }
EMU_NS inline uint64_t rnd() { auto& s = S(); uint64_t x = s.rng; x ^= x << 13; x ^= x >> 7; x ^= x << 17; return s.rng = x; }
EMU_NS __attribute__((noinline)) inline void to_home(Fiber* f) {
  auto& s = S();
  if (!_setjmp(f->jb)) {
#ifdef EMU_TSAN
    __tsan_switch_to_fiber(s.tsan_home, __tsan_switch_to_fiber_no_sync);
#endif
    _longjmp(s.home, 1);
  }
}
EMU_NS inline void yield() { Fiber* f = S().cur; to_home(f); }
EMU_NS inline void maybe_yield() { auto& s = S(); if (s.preempt && (rnd() & 255u) < s.preempt) yield(); }
EMU_NS inline void* shared(size_t n) {
  Fiber* f = S().cur; size_t o = (f->sh_off + 15) & ~size_t(15); f->sh_off = o + n;
  if (f->sh_off > f->blk->shmem.size()) { S().err = "shared memory over 48 KiB"; abort(); }
  return f->blk->shmem.data() + o;
}
EMU_NS inline void tramp() {
  auto& s = S(); Fiber* f = s.cur;
#ifdef EMU_TSAN
  __tsan_acquire(&s.tag[(s.gen + 1) & 1]);
#endif
  s.entry(s.args);
#ifdef EMU_TSAN
  __tsan_release(&s.tag[s.gen & 1]);
#endif
  f->st = DONE;
#ifdef EMU_TSAN
  __tsan_switch_to_fiber(s.tsan_home, __tsan_switch_to_fiber_no_sync);
#endif
  _longjmp(s.home, 1);
}
EMU_NS inline void resume(Fiber* f) {
  auto& s = S(); s.cur = f; ++s.switches;
  if (!_setjmp(s.home)) {
#ifdef EMU_TSAN
    __tsan_switch_to_fiber(f->tsan, __tsan_switch_to_fiber_no_sync);
#endif
    if (!f->started) { f->started = true; setcontext(&f->uc); }
    else _longjmp(f->jb, 1);
  }
  s.cur = nullptr;
}
EMU_NS inline void warp_op(unsigned mask, int op, uint64_t v) {
  Fiber* f = S().cur; f->wmask = mask; f->wop = op; f->wval = v; f->st = WWARP;
  if (!(mask >> (f->lin & 31) & 1)) { S().err = "lane calls a *_sync op but is not in its mask"; }
#ifdef EMU_TSAN
  __tsan_release(&f->blk->f[f->lin & ~31u]->wmask);
#endif
  yield();
#ifdef EMU_TSAN
  __tsan_acquire(&f->blk->f[f->lin & ~31u]->wmask);
#endif
}
// true if something was released
EMU_NS inline bool try_release(Block& b) {
  bool any = false; size_t n = b.f.size();
  for (size_t w = 0; w < n; w += 32)
    for (size_t l = w; l < n && l < w + 32; ++l) {
      Fiber* a = b.f[l]; if (a->st != WWARP) continue;
      bool ok = true;
      for (unsigned k = 0; k < 32 && ok; ++k) if (a->wmask >> k & 1) {
        if (w + k >= n) { S().err = "mask names a lane past the block"; ok = false; break; }
        Fiber* c = b.f[w + k];
        if (c->st == DONE) { S().err = "mask names a lane that has exited"; ok = false; }
        else if (c->st != WWARP || c->wmask != a->wmask || c->wop != a->wop) ok = false;
      }
      if (!ok) continue;
      unsigned m = a->wmask;
      uint64_t vals[32] = {};
      for (unsigned k = 0; k < 32; ++k) if (m >> k & 1) vals[k] = b.f[w + k]->wval;
      for (unsigned k = 0; k < 32; ++k) if (m >> k & 1) { Fiber* c = b.f[w + k]; memcpy(c->wres, vals, sizeof vals); c->st = RUN; }
      any = true;
    }
  size_t live = 0, wait = 0;
  for (auto* f : b.f) { if (f->st != DONE) ++live; if (f->st == WBLOCK) ++wait; }
  if (live && wait == live) {
    if (live != n) S().err = "__syncthreads reached while some threads of the block have exited";
    for (auto* f : b.f) if (f->st == WBLOCK) f->st = RUN;
    any = true; }
  return any;
}
template <class T> inline uint64_t bits(T v) { uint64_t r = 0; static_assert(sizeof(T) <= 8, ""); memcpy(&r, &v, sizeof v); return r; }
template <class T> inline T unbits(uint64_t r) { T v; memcpy(&v, &r, sizeof v); return v; }

struct Kern { void (*entry)(void**); };
inline std::map<std::string, Kern>& table() { static std::map<std::string, Kern> t; return t; }
template <class... A, size_t... I> inline void call(void (*f)(A...), void** p, std::index_sequence<I...>) { f(*(A*)p[I]...); }
template <auto F> struct Thunk;
template <class... A, void (*F)(A...)> struct Thunk<F> { static void go(void** p) { call(F, p, std::index_sequence_for<A...>{}); } };
struct Reg { Reg(const char* n, void (*e)(void**)) { table()[n] = Kern{e}; } };

EMU_NS inline std::string launch(const char* name, uint3e grid, uint3e block, void** args, uint64_t seed, unsigned preempt, unsigned resident = 4) {
  auto it = table().find(name); if (it == table().end()) return "no such kernel";
  auto& s = S(); s.gdim = grid; s.bdim = block; s.rng = seed * 0x9e3779b97f4a7c15ULL + 0x1234567; s.preempt = preempt; s.err.clear();
  s.entry = it->second.entry; s.args = args;
#ifdef EMU_TSAN
  s.tsan_home = __tsan_get_current_fiber(); ++s.gen;
#endif
  unsigned nt = block.x * block.y * block.z, nb = grid.x * grid.y * grid.z, next = 0;
  const size_t SS = 64 << 10;
  std::vector<Block> pool(resident < nb ? resident : nb);
  std::vector<Fiber> fibers(pool.size() * nt);
  for (auto& f : fibers) f.stack = (char*)malloc(SS);
  auto start = [&](Block& b, size_t bi) EMU_NS {
    unsigned id = next++; b.live = true; b.bid = {id % grid.x, id / grid.x % grid.y, id / grid.x / grid.y};
    b.shmem.assign(48 << 10, (char)0xA5); b.f.clear();        // poisoned shared memory
    for (unsigned t = 0; t < nt; ++t) {
      Fiber* f = &fibers[bi * nt + t];
      #ifdef EMU_TSAN
      f->stack = (char*)malloc(SS); // never reused: TSan must not see two fibers on one stack
#endif
      f->st = RUN; f->started = false; f->blk = &b; f->lin = t; f->sh_off = 0;
      f->tid = {t % block.x, t / block.x % block.y, t / block.x / block.y};
      getcontext(&f->uc); f->uc.uc_stack.ss_sp = f->stack; f->uc.uc_stack.ss_size = SS; f->uc.uc_link = nullptr;
      makecontext(&f->uc, (void (*)())tramp, 0);
#ifdef EMU_TSAN
      if (f->tsan) __tsan_destroy_fiber(f->tsan);
      f->tsan = __tsan_create_fiber(0);
#endif
      b.f.push_back(f);
    }
  };
  for (size_t i = 0; i < pool.size(); ++i) start(pool[i], i);
  std::vector<Fiber*> run;
  while (s.err.empty()) {
    run.clear();
    for (auto& b : pool) if (b.live) for (auto* f : b.f) if (f->st == RUN) run.push_back(f);
    if (!run.empty()) {
      // one random-order sweep: cheap, still explores orders
      for (size_t i = run.size(); i > 1; --i) std::swap(run[i - 1], run[rnd() % i]);
      size_t lim = preempt ? 1 + rnd() % run.size() : run.size();
      for (size_t i = 0; i < lim; ++i) if (run[i]->st == RUN) resume(run[i]);
    }
    bool progress = false, anylive = false;
    for (size_t i = 0; i < pool.size(); ++i) { Block& b = pool[i]; if (!b.live) continue;
      bool alldone = true; for (auto* f : b.f) if (f->st != DONE) alldone = false;
      if (alldone) { progress = true; if (next < nb) { start(b, i); anylive = true; } else b.live = false; continue; }
      anylive = true; if (try_release(b)) progress = true; }
    if (!anylive) break;
    if (!progress && run.empty()) s.err = "deadlock: every live thread waits on a barrier or warp op that cannot complete";
  }
#ifdef EMU_TSAN
  for (auto& f : fibers) if (f.tsan) __tsan_destroy_fiber(f.tsan);
#endif
  #ifndef EMU_TSAN
  for (auto& f : fibers) free(f.stack);
#endif
  return s.err;
}
} // namespace emu
namespace emu { EMU_NS inline uint3e g_tid(){return S().cur->tid;} EMU_NS inline uint3e g_bid(){return S().cur->blk->bid;} EMU_NS inline uint3e g_bdim(){return S().bdim;} EMU_NS inline uint3e g_gdim(){return S().gdim;} }
#define threadIdx (emu::g_tid())
#define blockIdx (emu::g_bid())
#define blockDim (emu::g_bdim())
#define gridDim (emu::g_gdim())
#define EMU_KERNEL(k) static emu::Reg emu_reg_##k(#k, &emu::Thunk<&k>::go)

EMU_NS inline void __syncthreads() { auto* f = emu::S().cur; f->st = emu::WBLOCK;
#ifdef EMU_TSAN
  __tsan_release(&f->blk->sync_tag);
#endif
  emu::yield();
#ifdef EMU_TSAN
  __tsan_acquire(&f->blk->sync_tag);
#endif
}
EMU_NS inline void __syncwarp(unsigned m = 0xffffffffu) { emu::warp_op(m, 1, 0); }
EMU_NS inline unsigned __ballot_sync(unsigned m, int p) { emu::warp_op(m, 2, p != 0); unsigned r = 0; auto* f = emu::S().cur; for (int k = 0; k < 32; ++k) if (m >> k & 1) r |= unsigned(f->wres[k]) << k; return r; }
EMU_NS inline int __any_sync(unsigned m, int p) { return __ballot_sync(m, p) != 0; }
EMU_NS inline int __all_sync(unsigned m, int p) { return __ballot_sync(m, p) == m; }
template <class T> EMU_NS inline T __shfl_sync(unsigned m, T v, int src, int width = 32) {
  emu::warp_op(m, 3, emu::bits(v)); auto* f = emu::S().cur; int lane = f->lin & 31; int k = (lane & ~(width - 1)) + (src & (width - 1)); 
  if (!(m >> k & 1)) emu::S().err = "shfl reads a lane outside the mask";
  return emu::unbits<T>(f->wres[k]); }
template <class T> EMU_NS inline T __shfl_xor_sync(unsigned m, T v, int x, int width = 32) {
  emu::warp_op(m, 4, emu::bits(v)); auto* f = emu::S().cur; int lane = f->lin & 31; int k = lane ^ x; return emu::unbits<T>(f->wres[(k & ~(width-1)) == (lane & ~(width-1)) ? k : lane]); }
inline int __ffs(unsigned v) { return __builtin_ffs((int)v); }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
template <class T> inline T atomicAdd(T* p, T v) { emu::maybe_yield(); if constexpr (std::is_floating_point<T>::value) { T o, n; 
    using U = typename std::conditional<sizeof(T) == 4, uint32_t, uint64_t>::type; U* q = (U*)p; U e = __atomic_load_n(q, __ATOMIC_RELAXED), d; do { memcpy(&o, &e, sizeof o); n = o + v; memcpy(&d, &n, sizeof d); } while (!__atomic_compare_exchange_n(q, &e, d, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)); return o; }
  else return __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
template <class T> inline T atomicCAS(T* p, T cmp, T v) { emu::maybe_yield(); T e = cmp; __atomic_compare_exchange_n(p, &e, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED); emu::maybe_yield(); return e; }
template <class T> inline T atomicExch(T* p, T v) { emu::maybe_yield(); return __atomic_exchange_n(p, v, __ATOMIC_RELAXED); }
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); emu::maybe_yield(); }

template <class T> EMU_NS inline T __shfl_up_sync(unsigned m, T v, unsigned by) {
  emu::warp_op(m, 5, emu::bits(v)); auto* f = emu::S().cur; unsigned lane = f->lin & 31; return emu::unbits<T>(f->wres[lane >= by ? lane - by : lane]); }
template <class T> EMU_NS inline unsigned __match_any_sync(unsigned m, T v) {
  emu::warp_op(m, 6, emu::bits(v)); auto* f = emu::S().cur; unsigned r = 0;
  for (int k = 0; k < 32; ++k) if ((m >> k & 1) && f->wres[k] == emu::bits(v)) r |= 1u << k;
  return r; }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) { return (unsigned long long)(((unsigned __int128)a * b) >> 64); }
template <class T> inline T __ldcs(const T* p) { return *p; }
template <class T> inline void __stcs(T* p, T v) { *p = v; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return __builtin_sqrtf(a); }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline unsigned __float_as_uint(float x) { unsigned u; memcpy(&u, &x, 4); return u; }
inline float __uint_as_float(unsigned u) { float x; memcpy(&x, &u, 4); return x; }

/*
 * tso.h - the memory model of x86: shared cells, which each CPU writes through one store buffer.
 *
 * A plain store waits in its CPU's buffer, in order, until the process drain() moves it to memory, at any later time. A
 * load reads the CPU's own newest buffered store, or else memory. A locked instruction (RMW, seq_cst store) is executed
 * on memory, when the buffer is empty. Stores in the buffer of a dead process still become visible.
 *
 * The including file must define CPUS and CELLS before. Buffers hold two stores, one more than any protocol here needs.
 * drain() must be the first proctype, since it derives its CPU number from _pid.
 */
typedef store_buffer
{
	byte used;
	byte addr0;
	byte val0; /* the older store */
	byte addr1;
	byte val1
}
store_buffer buffer[CPUS];
byte mem[CELLS];

#define DRAINED(cpu) (buffer[cpu].used == 0)
#define LOAD(cpu, a) \
	((buffer[cpu].used == 2 && buffer[cpu].addr1 == (a))->buffer[cpu].val1 \
		: ((buffer[cpu].used > 0 && buffer[cpu].addr0 == (a))->buffer[cpu].val0 \
			: mem[a]))

inline store(cpu, a, v)
{
	d_step
	{
		buffer[cpu].used < 2->if ::buffer[cpu].used == 0->buffer[cpu].addr0 = a;
		buffer[cpu].val0 = v ::else->buffer[cpu].addr1 = a;
		buffer[cpu].val1 = v fi;
		buffer[cpu].used++
	}
}

/* Execute one locked instruction: the statement takes effect at once, in memory. */
#define LOCKED(cpu, statement) \
	d_step \
	{ \
		DRAINED(cpu)->statement \
	}

active[CPUS] proctype drain()
{
end:
	do
		::d_step
		{
			buffer[_pid].used > 0->mem[buffer[_pid].addr0] = buffer[_pid].val0;
			buffer[_pid].addr0 = buffer[_pid].addr1;
			buffer[_pid].val0 = buffer[_pid].val1;
			buffer[_pid].addr1 = 0;
			buffer[_pid].val1 = 0;
			buffer[_pid].used--
		}
	od
}
